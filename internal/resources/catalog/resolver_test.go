package catalog

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// A variable source serves what its fields say.
type variable struct {
	mu    sync.Mutex
	found map[cluster.Name][]Found
}

func (v *variable) set(c cluster.Name, all ...Found) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.found[c] = all
}

func (v *variable) Find(c cluster.Name, gr schema.GroupResource) (Found, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	i := slices.IndexFunc(v.found[c], func(f Found) bool { return f.Content.GroupResource() == gr })
	if i < 0 {
		return Found{}, false
	}
	return v.found[c][i], true
}

func (v *variable) All(c cluster.Name) []Served {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []Served
	for _, f := range v.found[c] {
		all = append(all, f.Served)
	}
	return all
}

func (v *variable) Anywhere(gr schema.GroupResource) bool {
	_, ok := v.Find("c1", gr)
	return ok
}

// Holder names each resource after its identity.
func (v *variable) Holder(c cluster.Name, gr schema.GroupResource) Holder {
	f, _ := v.Find(c, gr)
	return Holder{"Thing", f.Identity}
}

// from returns a resource that depends on two keys.
func from(t *testing.T, names, identity string, revisions ...int64) Found {
	t.Helper()
	content, err := NewContent(called(names))
	if err != nil {
		t.Fatal(err)
	}
	f := Found{Served: Served{Content: content, Identity: identity}}
	for i, revision := range revisions {
		f.Evidence = append(f.Evidence, Evidence{keys.SystemKey("c1", "evidence", string(rune('a'+i))), revision})
	}
	return f
}

// The sources of a resolver take precedence in their order, after what the server defines.
// Each source contributes its resources, evidence and names.
func TestSourcesOfAResolver(t *testing.T) {
	given, first, second := from(t, "foos foo Foo FooList", ""), from(t, "bars bar Bar BarList", "one", 1, 2), from(t, "bars bar Bar BarList", "two", 3)
	hidden, last := from(t, "foos foo Foo FooList", "two", 3), from(t, "bazzes baz Baz BazList", "two", 3)
	r := NewResolver(func(cluster.Name) *Shape { return NewShape(given.Served) })
	a, b := &variable{found: map[cluster.Name][]Found{}}, &variable{found: map[cluster.Name][]Found{}}
	r.Add(a)
	r.Add(b)
	a.set("c1", first)
	b.set("c1", second, hidden, last)
	r.Rebuilt()
	for _, want := range []Found{given, first, last} {
		gr := want.Content.GroupResource()
		got, ok := r.Find("c1", gr)
		if !ok || got.Identity != want.Identity || !slices.Equal(got.Evidence, want.Evidence) {
			t.Errorf("%s is %+v, want %+v", gr, got, want)
		}
		if served, ok := r.Shape("c1").Find(gr); !ok || served != got.Served {
			t.Errorf("%s is in the shape as %+v", gr, served)
		}
	}
	var kinds []string
	for _, n := range r.Names("c1", "example.com") {
		kinds = append(kinds, n.Names.Kind+" of "+n.By.String())
	}
	if got, want := strings.Join(kinds, ", "), "Foo of the server, Bar of Thing one, Bar of Thing two, Foo of Thing two, Baz of Thing two"; got != want {
		t.Errorf("names in use: %s, want %s", got, want)
	}
	if len(r.Shape("c2").All()) != 1 || len(r.clusters) != 1 {
		t.Errorf("a cluster without further resources has %v, and is kept: %d", r.Shape("c2").All(), len(r.clusters))
	}
}

// A watch ends when its resource comes from another source, or under another identity, also if
// the content is the same. New evidence alone does not end it.
func TestWatchesEndWithTheirResource(t *testing.T) {
	r := NewResolver(func(cluster.Name) *Shape { return NewShape() })
	v := &variable{found: map[cluster.Name][]Found{}}
	r.Add(v)
	gr := schema.GroupResource{Group: "example.com", Resource: "foos"}
	for name, c := range map[string]struct {
		next []Found
		ends bool
	}{
		"new evidence":    {next: []Found{from(t, "foos foo Foo FooList", "one", 8, 9)}},
		"less evidence":   {next: []Found{from(t, "foos foo Foo FooList", "one", 8)}},
		"another content": {next: []Found{from(t, "foos foo Foo OtherList", "one", 8)}, ends: true},
		"another export":  {next: []Found{from(t, "foos foo Foo FooList", "two", 8)}, ends: true},
		"nothing":         {ends: true},
	} {
		v.set("c1", from(t, "foos foo Foo FooList", "one", 7))
		r.Changed("c1", gr)
		found, _ := r.Find("c1", gr)
		ctx, done := r.WatchContext(t.Context(), "c1", found)
		v.set("c1", c.next...)
		r.Changed("c1", gr)
		if c.ends {
			<-ctx.Done() // or the test times out
		} else if ctx.Err() != nil {
			t.Errorf("%s ends the watch", name)
		}
		done()
	}
	v.set("c1")
	late, done := r.WatchContext(t.Context(), "c1", from(t, "foos foo Foo FooList", "one", 7))
	if late.Err() == nil {
		t.Error("a watch of a resource that is gone begins")
	}
	done()
	if len(r.watches) != 0 {
		t.Errorf("watches are kept: %v", r.watches)
	}
}
