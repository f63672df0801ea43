package server_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// untilTold waits for a condition of a definition with the given words.
func (c *tenant) untilTold(name string, t apiextensionsv1.CustomResourceDefinitionConditionType, status, words string) {
	c.t.Helper()
	c.await(definitions, "", name, func(o *unstructured.Unstructured) bool {
		all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, one := range all {
			condition, _ := one.(map[string]any)
			if condition["type"] == string(t) && condition["status"] == status && strings.Contains(fmt.Sprint(condition["reason"], condition["message"]), words) {
				return true
			}
		}
		return false
	})
}

// Of several concurrent definitions of a kind, one gets the name. The conditions of the
// others show that. One of them gets the name once it is free.
func TestNamesAreOfOne(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	const writers = 8
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			d := crd(t, fmt.Sprintf("claims%ds", i), "spec: {names: {kind: Claim, listKind: ClaimList, shortNames: [cl]}}")
			if err := retry.OnError(retry.DefaultBackoff, apierrors.IsTooManyRequests, func() error {
				_, err := c.crds().Create(t.Context(), d, metav1.CreateOptions{})
				return err
			}); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	has := func() string {
		var with []string
		for _, d := range must(c.crds().List(t.Context(), metav1.ListOptions{}))(t).Items {
			accepted := conditionIs(&d, apiextensionsv1.NamesAccepted, "True")
			if accepted != (d.Status.AcceptedNames.Kind == "Claim") || accepted != (len(d.Status.AcceptedNames.ShortNames) == 1) {
				t.Errorf("%s: %+v", d.Name, d.Status)
			}
			if _, err := c.of(&d).List(t.Context(), metav1.ListOptions{}); accepted != (err == nil) {
				t.Errorf("%s is served, or not: %v", d.Name, err)
			}
			if accepted {
				with = append(with, d.Name)
			}
		}
		if len(with) != 1 {
			t.Fatalf("%v have one name", with)
		}
		return with[0]
	}
	first := has()
	c.undefine(first)
	c.await(definitions, "", first, gone)
	left := must(c.crds().List(t.Context(), metav1.ListOptions{}))(t).Items
	var got string
	for got == "" { // a loop assigns the free name
		for _, d := range left {
			now := must(c.crds().Get(t.Context(), d.Name, metav1.GetOptions{}))(t)
			if conditionIs(now, apiextensionsv1.Established, "True") {
				got = d.Name
			}
		}
		runtime.Gosched()
	}
	if second := has(); second != got {
		t.Errorf("%s, and before %s", second, got)
	}
	if _, err := c.of(crd(t, strings.TrimSuffix(got, ".example.com"))).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

// A released short name goes to the definition that waits for it. Names in other groups and
// clusters are independent.
func TestReleasedNamesAreTaken(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	first := c.newKind(crd(t, "widgets", "spec: {names: {shortNames: [w]}}"))
	second := c.newKind(crd(t, "wheels", "spec: {names: {shortNames: [w]}}"))
	if !conditionIs(second, apiextensionsv1.NamesAccepted, "False") || !conditionIs(second, apiextensionsv1.Established, "False") {
		t.Errorf("a taken short name: %v", second.Status)
	}
	elsewhere := crd(t, "wheels", "{metadata: {name: wheels.example.org}, spec: {group: example.org, names: {shortNames: [w]}}}")
	for _, d := range []*definition{c.newKind(elsewhere), other.newKind(crd(t, "wheels", "spec: {names: {shortNames: [w]}}"))} {
		if !conditionIs(d, apiextensionsv1.Established, "True") {
			t.Errorf("a name of another group or cluster: %v", d.Status)
		}
	}
	must(c.redefine(first.Name, "spec: {names: {shortNames: [wi]}}"))(t)
	c.untilTold(second.Name, apiextensionsv1.Established, "True", "InitialNamesAccepted")
	c.instance(second, "o")
	if back := must(c.redefine(first.Name, "spec: {names: {shortNames: [w]}}"))(t); !conditionIs(back, apiextensionsv1.NamesAccepted, "False") || !conditionIs(back, apiextensionsv1.Established, "True") {
		t.Errorf("it is taken again: %v", back.Status)
	}
	c.instance(first, "still")
}

// fresh returns a new cluster of a server that belongs to one test.
func fresh(t *testing.T, s *running) *tenant {
	t.Helper()
	c := cluster.NewName()
	if err := s.MakeCluster(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return at(t, s, c, server.System())
}

// Equal definitions share a handler, which is removed with the last of them.
func TestEqualDefinitionsShareAHandler(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	defer s.Close()
	before := s.Handlers()
	const clusters = 20
	var all []*tenant
	d := crd(t, "widgets", "spec: {names: {shortNames: [shared]}}")
	for range clusters {
		c := fresh(t, s)
		all = append(all, c)
		c.newKind(d)
		c.instance(d, "o")
	}
	if n := s.Handlers() - before; n != 1 {
		t.Errorf("%d handlers for one definition in %d clusters", n, clusters)
	}
	all[0].newKind(crd(t, "others"))
	all[0].instance(crd(t, "others"), "o")
	if n := s.Handlers() - before; n != 2 {
		t.Errorf("%d handlers for two definitions", n)
	}
	for _, c := range all {
		c.undefine(d.Name)
		c.await(definitions, "", d.Name, gone)
	}
	for range 10000 {
		if runtime.GC(); s.Handlers()-before == 1 {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("%d handlers are left", s.Handlers()-before)
}

// Deleted and unused definitions leave no goroutines.
func TestDefinitionsLeaveNoGoroutines(t *testing.T) {
	s := start(t, t.TempDir())
	defer s.Close()
	c := fresh(t, s)
	cycle := func(name string) {
		d := c.newKind(crd(t, name, schemaOf("{type: object, description: "+name+"}")))
		c.instance(d, "o")
		w := must(c.of(d).Watch(t.Context(), metav1.ListOptions{}))(t)
		next(t, w)
		c.undefine(d.Name)
		c.undefined(d)
		w.Stop() // it would end by itself a moment later
	}
	cycle("warms")
	runtime.GC()
	before := runtime.NumGoroutine()
	const definitions = 40
	for i := range definitions {
		cycle(fmt.Sprintf("leaks%ds", i))
	}
	for range 300 {
		if runtime.GC(); s.Handlers() == 0 && runtime.NumGoroutine() < before+definitions/2 {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("%d handlers and %d goroutines, before %d", s.Handlers(), runtime.NumGoroutine(), before)
}

// Clusters can have different definitions of the same name. A change of one ends the watches
// in its cluster only, and these resume without a loss.
func TestEqualNamesInTwoClusters(t *testing.T) {
	t.Parallel()
	one, two := newTenant(t), newTenant(t)
	a := one.newKind(crd(t, "widgets", schemaOf("{type: object, properties: {spec: {type: object, properties: {a: {type: integer}}}}}")))
	b := two.newKind(crd(t, "widgets", "spec: {scope: Cluster, versions: [{name: v7, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: string}}}}}]}"))
	one.instance(a, "o", "spec: {a: 1, b: 2}")
	two.instance(b, "o", "spec: text")
	if o := must(one.of(a).Get(t.Context(), "o", metav1.GetOptions{}))(t); fmt.Sprint(o.Object["spec"]) != "map[a:1]" || o.GetNamespace() != "default" {
		t.Errorf("in one: %v", o)
	}
	if o := must(two.of(b).Get(t.Context(), "o", metav1.GetOptions{}))(t); o.Object["spec"] != "text" || o.GetNamespace() != "" || o.GetAPIVersion() != "example.com/v7" {
		t.Errorf("in the other: %v", o)
	}
	for c, wrong := range map[*tenant]*definition{one: b, two: a} {
		if _, err := c.of(wrong).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("what the other cluster serves: %v", err)
		}
	}
	list := must(one.of(a).List(t.Context(), metav1.ListOptions{}))(t)
	ends := must(one.of(a).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}))(t)
	goesOn := must(two.of(b).Watch(t.Context(), metav1.ListOptions{ResourceVersion: must(two.of(b).List(t.Context(), metav1.ListOptions{}))(t).GetResourceVersion()}))(t)
	defer goesOn.Stop()
	must(one.redefine(a.Name, schemaOf("{type: object, properties: {spec: {type: object, properties: {a: {type: integer}, b: {type: integer}}}}}")))(t)
	for e := range ends.ResultChan() {
		t.Errorf("got %v", e)
	}
	two.instance(b, "next", "spec: text")
	if e := next(t, goesOn); e.Type != watch.Added || e.Object.(*unstructured.Unstructured).GetName() != "next" {
		t.Errorf("got %v", e)
	}
	must(one.redefine(a.Name, "metadata: {labels: {a: b}}"))(t) // changes nothing about the served resource
	again := must(one.of(a).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}))(t)
	defer again.Stop()
	must(one.redefine(a.Name, "metadata: {labels: {a: c}}"))(t)
	one.instance(a, "p", "spec: {a: 1, b: 2}")
	if e := next(t, again); e.Type != watch.Added || fmt.Sprint(e.Object.(*unstructured.Unstructured).Object["spec"]) != "map[a:1 b:2]" {
		t.Errorf("got %v", e)
	}
}

// Watches that resume after a change of the definition lose no event, however often it
// changes.
func TestWatchesLoseNothing(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.newKind(crd(t, "widgets"))
	const watchers, objects, changes = 4, 60, 6
	var begun sync.WaitGroup
	begun.Add(watchers)
	from := must(c.of(d).List(t.Context(), metav1.ListOptions{}))(t).GetResourceVersion()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wg sync.WaitGroup
	for i := range watchers {
		wg.Go(func() {
			seen, ended, err := c.follow(ctx, d, from, objects, sync.OnceFunc(begun.Done))
			if err != nil || len(seen) != objects || ended == 0 {
				t.Errorf("watcher %d saw %d objects, ended %d times: %v", i, len(seen), ended, err)
			}
			for name, n := range seen {
				if n != 1 {
					t.Errorf("watcher %d saw %s %d times", i, name, n)
				}
			}
		})
	}
	wg.Go(func() {
		begun.Wait()
		for i := range changes {
			if _, err := c.redefine(d.Name, fmt.Sprintf("spec: {names: {shortNames: [w%d]}}", i)); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Go(func() {
		for i := range objects {
			if i == objects/2 {
				begun.Wait()
				if _, err := c.redefine(d.Name, "spec: {names: {shortNames: [half]}}"); err != nil && !apierrors.IsConflict(err) {
					t.Error(err)
				}
			}
			if _, err := c.of(d).Create(ctx, instance(d, fmt.Sprint("o", i)), metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
}

// follow watches until it has seen n objects, and resumes when a watch ends. It calls begun
// at the first event. It returns the objects and the number of watches that ended.
func (c *tenant) follow(ctx context.Context, d *definition, from string, n int, begun func()) (seen map[string]int, ended int, err error) {
	seen = map[string]int{}
	for ctx.Err() == nil {
		w, err := c.of(d).Watch(ctx, metav1.ListOptions{ResourceVersion: from})
		if err != nil {
			return seen, ended, err
		}
		for e := range w.ResultChan() {
			o, ok := e.Object.(*unstructured.Unstructured)
			if !ok || e.Type == watch.Error {
				w.Stop()
				return seen, ended, apierrors.FromObject(e.Object)
			}
			from = o.GetResourceVersion()
			begun()
			if seen[o.GetName()]++; len(seen) == n {
				w.Stop()
				return seen, ended, nil
			}
		}
		w.Stop()
		ended++
	}
	return seen, ended, errors.Join(ctx.Err(), errors.New("not seen in time"))
}

// While a definition changes, each write is validated by one of its versions, or refused with
// an error to retry.
func TestWritesWhileADefinitionChanges(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	schema := func(odd bool) string {
		return schemaOf(fmt.Sprintf("{type: object, properties: {spec: {type: object, properties: {v: {type: string, enum: [%t]}}}}}", odd))
	}
	d := c.newKind(crd(t, "widgets", schema(false)))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				o := instance(d, fmt.Sprintf("o%d-%d", i, n), fmt.Sprintf(`spec: {v: "%t"}`, n%2 == 0))
				_, err := c.of(d).Create(t.Context(), o, metav1.CreateOptions{})
				if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsTooManyRequests(err) {
					t.Error(err)
				}
			}
		})
	}
	for i := range 10 {
		j := schema(i%2 == 0)
		if _, err := c.redefine(d.Name, j); err != nil {
			t.Error(err)
		}
		// From now on writes are validated by the new schema.
		wrong := fmt.Sprintf(`spec: {v: "%t"}`, i%2 != 0)
		if _, err := c.of(d).Create(t.Context(), instance(d, fmt.Sprint("wrong", i), wrong), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("round %d: by a schema that is no more: %v", i, err)
		}
	}
	close(stop)
	wg.Wait()
	if _, err := c.of(d).Patch(t.Context(), "none", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}
