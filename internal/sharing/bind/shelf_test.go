package bind

import (
	"encoding/json"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// A shelf is a store with exports and bindings, without the loops that settle them.
type shelf struct {
	*testing.T
	store *store.Store
	apis  *APIs
}

// newShelf returns a shelf whose change feed runs.
func newShelf(t *testing.T, o store.Options, clusters ...cluster.Name) *shelf {
	t.Helper()
	s := closedShelf(t, o)
	s.open(clusters...)
	return s
}

// closedShelf returns a shelf whose change feed does not run yet. The followers are before its own.
func closedShelf(t *testing.T, o store.Options, followers ...feed.Follower) *shelf {
	t.Helper()
	o.Dir, o.Version, o.NoSync = t.TempDir(), "1.36", true
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.Values().Register(define.Resource(), values.Codec{Codec: apiextensionsserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)})
	for _, f := range followers {
		s.Feed().Follow(f)
	}
	r := catalog.NewResolver(func(cluster.Name) *catalog.Shape { return catalog.NewShape() })
	tree := tree.NewTree(s, tenancy.WorkspaceResource("w"), "https://kcp.example.com")
	d, w := define.New(s, r), &tenancy.Workspaces{Store: s, Tree: tree}
	return &shelf{t, s, New(s, exports.New(s, d, w), d, r, w)}
}

// open starts the change feed, and makes clusters.
func (s *shelf) open(clusters ...cluster.Name) {
	s.Helper()
	if err := s.store.Feed().Start(s.Context()); err != nil {
		s.Fatal(err)
	}
	for _, c := range clusters {
		if _, err := s.store.Commit(s.Context(), nil, store.Fence{Cluster: c, State: store.Active}); err != nil {
			s.Fatal(err)
		}
	}
}

// put stores an object as the server has written it, without charge, or deletes it if it is nil. It
// waits until that is known.
func (s *shelf) put(r keys.Resource, c cluster.Name, name string, o any) int64 {
	s.Helper()
	key := r.Key(c, "", name)
	rev, _, err := s.store.Revision(s.Context(), key)
	if err == nil && o == nil {
		if rev == 0 {
			return 0
		}
		gone := &unstructured.Unstructured{}
		gone.SetName(name)
		rev, err = s.store.Commit(s.Context(), []store.Write{{Resource: r, Cluster: c, Object: gone, Expect: rev, Delete: true}})
	} else if err == nil {
		data, _ := json.Marshal(o) // types of the API always encode
		u := &unstructured.Unstructured{}
		if err = json.Unmarshal(data, &u.Object); err == nil {
			rev, err = s.store.Commit(s.Context(), []store.Write{{Resource: r, Cluster: c, Object: u, Expect: rev, Payer: cluster.Admin}})
		}
	}
	if err == nil {
		err = s.store.Feed().WaitFor(s.Context(), rev)
	}
	if err != nil {
		s.Fatal(err)
	}
	return rev
}
