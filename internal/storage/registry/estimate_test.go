package registry

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// Lists of built-in kinds reserve memory before they are read, according to their stored size
// and output format. That includes pages and all sources of lists.
func TestListsOfBuiltInKindsAreWeighed(t *testing.T) {
	s, cm := open(t, "c1", "c2")
	const objects, size = 20, 10_000
	for i := range objects {
		name := "x" + string(rune('a'+i))
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, strings.Repeat("v", size)), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	s.Feed().Fresh(t.Context())
	weight := func(c context.Context, accept string, limit int64, version string) int64 {
		ctx := WithAccept(measured(c), accept)
		p := storage.Everything
		p.Limit = limit
		if err := cm.GetList(ctx, cmRoot, storage.ListOptions{ResourceVersion: version, Recursive: true, Predicate: p}, &corev1.ConfigMapList{}); err != nil {
			t.Fatal(err)
		}
		return fair.Held(ctx)
	}
	stored := s.Feed().Ledger().Usage("c1", keys.NativeResource(storetest.ConfigMaps())).Bytes
	for _, version := range []string{"", "0"} {
		if got := weight(in("c1"), "application/yaml", 0, version); got < yamlTimes*stored {
			t.Errorf("YAML at %q: %d bytes of %d stored", version, got, stored)
		}
		if got := weight(in("c1"), "application/json;as=Table;v=v1;g=meta.k8s.io", 0, version); got < stored/wholePart || got > stored {
			t.Errorf("a table at %q: %d bytes of %d stored", version, got, stored)
		}
		if got := weight(in("c1"), "application/json", 0, version); got < stored/streamedPart || got > stored/2 {
			t.Errorf("JSON at %q: %d bytes of %d stored", version, got, stored)
		}
		if got := weight(in("c1"), "application/yaml", 1, version); got < yamlTimes*size || got > yamlTimes*stored {
			t.Errorf("a page at %q: %d bytes", version, got)
		}
		if got := weight(in("c2"), "application/yaml", 0, version); got != 0 {
			t.Errorf("an empty list at %q: %d bytes", version, got)
		}
	}
}

// measured returns the context of a request whose memory is counted.
func measured(ctx context.Context) context.Context {
	w := fair.New(fair.Limits{}).Begin()
	w.For("tenant")
	return fair.With(ctx, w)
}

// The selector of a watch counts as memory until the watch ends.
func TestSelectorsOfWatchesAreWeighed(t *testing.T) {
	for text, least := range map[string]int64{"": 0, "a=b": 500, strings.Repeat("k!=v,", 400) + "k": 400 * selectorTerm, "a in (b,c,d)": selectorTerm + 3*selectorValue} {
		ctx := measured(t.Context())
		selector, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := growSelectors(ctx, storage.SelectionPredicate{Label: selector}); err != nil || fair.Held(ctx) < least || fair.Held(ctx) > 2*least {
			t.Errorf("%.20q: %d bytes, want about %d: %v", text, fair.Held(ctx), least, err)
		}
	}
}
