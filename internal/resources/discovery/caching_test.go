package discovery

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/memory/recent"
	"github.com/unforked/kcp/internal/resources/catalog"
)

// Clusters of equal shape share all documents, and those of similar shape the equal ones.
func TestEqualShapesShareOneBuild(t *testing.T) {
	t.Parallel()
	contents := own(t)
	extra := content(t, define("example.com", "widgets", "Widget", "v1"))
	shapes := map[cluster.Name]*catalog.Shape{"other": shapeOf(append(own(t), extra)...)}
	names := []cluster.Name{"a", "b", "c", "d", "other"}
	for _, n := range names[:4] {
		shapes[n] = shapeOf(contents...)
	}
	w := startWorld(t, shapes)
	var wg sync.WaitGroup
	for _, n := range names {
		for _, path := range []string{"/apis", "/openapi/v2", "/openapi/v3", "/openapi/v3/apis/tenancy.kcp.io/v1alpha1", "/apis/core.kcp.io/v1alpha1"} {
			wg.Go(func() {
				if r := w.get(t, n, path, "Accept", "application/json"); r.Code != http.StatusOK {
					t.Errorf("%s%s: %d %s", n, path, r.Code, r.Body)
				}
			})
		}
	}
	wg.Wait()
	equal(t, "discoveries", w.groups.Len(), 2)
	equal(t, "OpenAPI version 2", w.openAPIV2.Len(), 2)
	equal(t, "OpenAPI version 3", w.openAPIV3.Len(), 2)
	equal(t, "hashes", w.hashes.Len(), 3)
	equal(t, "documents", w.documents.Len(), 3)
}

// A document with the same hash is always the same.
func TestDocumentsAreBuiltAgain(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*catalog.Shape{"a": shapeOf(append(own(t), content(t, define("coordination.k8s.io", "clocks", "Clock", "v1")))...)})
	w.documents = recent.New[catalog.Hash, *document](1, maxIdle)
	before := urls(t, w, "a")
	for _, n := range []string{"apis/tenancy.kcp.io/v1alpha1", "apis/core.kcp.io/v1alpha1", "apis/coordination.k8s.io/v1", "apis/tenancy.kcp.io/v1alpha1"} {
		r := w.get(t, "a", before[n])
		equal(t, n, r.Code, http.StatusOK)
		equal(t, n+", in "+before[n], strings.HasSuffix(before[n], "?hash="+strings.Trim(r.Header().Get("Etag"), `"`)), true)
		equal(t, "documents", w.documents.Len(), 1)
	}
}
