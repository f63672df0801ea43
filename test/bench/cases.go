package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/test/child"
)

// bench is one run of the program.
type bench struct {
	plan     plan
	short    bool
	encoding encoding
	dir      string
	log      io.Writer
	report   *report
	subjects []subject

	begun  int       // servers started, to give each a directory
	shared []*server // one of each subject, for the cases that leave no trace in another's figures
}

// benchCase is one comparison of the subjects.
type benchCase struct {
	name string
	run  func(ctx context.Context, b *bench) error
}

// cases returns all cases in the order in which they run. Memory comes last, because it
// needs fresh servers.
func cases() []benchCase {
	return []benchCase{
		{"start", starts},
		{"configmaps", configMaps},
		{"customs", customs},
		{"admission", admission},
		{"definitions", definitions},
		{"bindings", bindings},
		{"list", lists},
		{"workspaces", makeTenants},
		{"watches", watches},
		{"views", views},
		{"footprint", footprints},
		{"features", features},
		{"trees", trees},
		{"crowd", crowds},
		{"restart", restarts},
	}
}

// fresh starts a server with an empty directory. The caller stops it.
func (b *bench) fresh(ctx context.Context, s subject, controllers bool) (*server, error) {
	b.begun++
	dir := filepath.Join(b.dir, fmt.Sprintf("%s-%d", s.name(), b.begun))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	server, err := s.start(ctx, dir, controllers)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name(), err)
	}
	return server, nil
}

// onKCP calls measure with a fresh server of kcp, if kcp is a subject. It is for cases that
// a stock server is not compared in. measure stops the server.
func (b *bench) onKCP(ctx context.Context, measure func(kcp subject, s *server) error) error {
	i := slices.IndexFunc(b.subjects, func(s subject) bool { return s.name() == "kcp" })
	if i < 0 {
		return nil
	}
	s, err := b.fresh(ctx, b.subjects[i], true)
	if err != nil {
		return err
	}
	return measure(b.subjects[i], s)
}

// servers returns one server of each subject, shared by the cases.
func (b *bench) servers(ctx context.Context) ([]*server, error) {
	for len(b.shared) < len(b.subjects) {
		s, err := b.fresh(ctx, b.subjects[len(b.shared)], true)
		if err != nil {
			return nil, err
		}
		b.shared = append(b.shared, s)
	}
	return b.shared, nil
}

func (b *bench) close() {
	for _, s := range b.shared {
		s.stop()
	}
	b.shared = nil
}

// starts measures the time from exec to ready, without the stock controller manager.
func starts(ctx context.Context, b *bench) error {
	type started struct{ wall, cpu, memory, goroutines []float64 }
	all := map[string]*started{}
	for range b.plan.starts {
		for _, subject := range b.subjects {
			s, err := b.fresh(ctx, subject, false)
			if err != nil {
				return err
			}
			cpu, err := sumCPU(s.measured)
			var f footprint
			if err == nil {
				f, err = s.footprint(ctx)
			}
			s.stop()
			if err != nil {
				return fmt.Errorf("%s: %w", subject.name(), err)
			}
			x := all[s.subject]
			if x == nil {
				x = &started{}
				all[s.subject] = x
			}
			x.wall, x.cpu = append(x.wall, s.took.Seconds()), append(x.cpu, cpu.Seconds())
			x.memory, x.goroutines = append(x.memory, f.memory), append(x.goroutines, f.goroutines)
		}
	}
	for name, x := range all {
		b.report.add(name, "start, empty", "exec to ready", seconds, median(x.wall))
		b.report.add(name, "start, empty", "CPU until ready", seconds, median(x.cpu))
		b.report.add(name, "start, empty", "memory when ready", bytesUnit, median(x.memory))
		b.report.add(name, "start, empty", "goroutines", plainCount, median(x.goroutines))
	}
	return nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// side is one server in a case, with its clients.
type side struct {
	*server
	clients []*client
}

// sides starts the shared servers and connects all clients. The caller calls the returned
// function to close the clients.
func (b *bench) sides(ctx context.Context) ([]*side, func(), error) {
	servers, err := b.servers(ctx)
	if err != nil {
		return nil, nil, err
	}
	var out []*side
	done := func() {
		for _, s := range out {
			child.CloseAll(s.clients)
		}
	}
	for _, s := range servers {
		clients, err := child.Connect(ctx, s.user, b.plan.clients)
		if err != nil {
			done()
			return nil, nil, fmt.Errorf("%s: %w", s.subject, err)
		}
		out = append(out, &side{s, clients})
	}
	return out, done, nil
}

// fill creates a tenant with the config maps to list, and checks that a list returns all
// of them.
func (b *bench) fill(ctx context.Context, s *side, name string) (tenant, error) {
	t, err := s.newTenant(ctx, s.clients[0], name)
	if err != nil {
		return t, err
	}
	return t, b.populate(ctx, s.clients[0], b.configMap(), t)
}

// populate creates the objects to list.
func (b *bench) populate(ctx context.Context, c *client, k kind, t tenant) error {
	collection, listed := k.in(t)
	for i := range b.plan.listed {
		if err := k.create(ctx, c, collection, fmt.Sprintf("listed-%d", i)); err != nil {
			return err
		}
	}
	raw, err := c.Call(ctx, http.MethodGet, listed, jsonType, nil)
	if err != nil {
		return err
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("list %s: %w", listed, err)
	}
	got := 0
	for _, o := range list.Items {
		if o.Labels["app"] == "bench" { // without the objects that controllers create
			got++
		}
	}
	if got != b.plan.listed {
		return fmt.Errorf("list %s has %d of our objects, want %d", listed, got, b.plan.listed)
	}
	return nil
}

// kind is the kind of object that operations read and write.
type kind struct {
	name  string
	media string
	// replace is the HTTP method of updates.
	replace string
	// body returns an object with a value that begins with the given word.
	body func(name, word string) ([]byte, error)
	// prepare makes a tenant ready for objects of the kind; it may be nil.
	prepare func(ctx context.Context, c *client, t tenant) error
	// in returns the URL paths of a tenant's objects: the collection to write to, and the
	// one to list.
	in func(tenant) (collection, all string)
}

func (b *bench) configMap() kind {
	return kind{
		name: "config map", media: b.encoding.media, replace: http.MethodPut,
		body: func(name, word string) ([]byte, error) { return b.encoding.configMap(name, word, b.plan.size) },
		in:   func(t tenant) (string, string) { return t.configMaps, t.configMaps },
	}
}

func (k kind) create(ctx context.Context, c *client, collection, name string) error {
	body, err := k.body(name, "created")
	if err != nil {
		return err
	}
	_, err = c.Call(ctx, http.MethodPost, collection, k.media, body)
	return err
}

// update writes an object again, with a value that begins with the given word.
func (k kind) update(ctx context.Context, c *client, object, word string) error {
	body, err := k.body(path.Base(object), word)
	if err != nil {
		return err
	}
	_, err = c.Call(ctx, k.replace, object, k.media, body)
	return err
}

// create creates a config map.
func (b *bench) create(ctx context.Context, c *client, collection, name string) error {
	return b.configMap().create(ctx, c, collection, name)
}

// update writes a config map again, with a value that begins with the given word.
func (b *bench) update(ctx context.Context, c *client, object, word string) error {
	return b.configMap().update(ctx, c, object, word)
}

// configMaps measures each verb on config maps. All clients write in one tenant and list
// another one.
func configMaps(ctx context.Context, b *bench) error { return b.operations(ctx, b.configMap()) }

// operations measures each verb on objects of a kind.
func (b *bench) operations(ctx context.Context, k kind) error {
	sides, done, err := b.sides(ctx)
	if err != nil {
		return err
	}
	defer done()
	samples := map[string][]sample{}
	for round := range b.plan.rounds {
		for _, s := range sides {
			got, err := b.verbs(ctx, s, k, round)
			if err != nil {
				return fmt.Errorf("%s: %w", s.subject, err)
			}
			if samples[s.subject] == nil {
				samples[s.subject] = got
				continue
			}
			for i := range got {
				samples[s.subject][i].merge(got[i])
			}
		}
	}
	for _, s := range sides {
		var sum time.Duration
		for i, verb := range verbs() {
			x := &samples[s.subject][i]
			b.reportLoad(s.subject, k.name+" "+verb.name, x)
			sum += x.each(x.server)
		}
		b.report.addTime(s.subject, k.name+", mean of all", "server CPU each", sum/time.Duration(len(verbs())))
	}
	return nil
}

func (b *bench) reportLoad(subject, of string, x *sample) {
	of = fmt.Sprintf("%s, %d clients", of, b.plan.clients)
	b.report.add(subject, of, "rate", perSecond, x.rate())
	b.report.addTime(subject, of, "p50", x.percentile(50))
	b.report.addTime(subject, of, "p99", x.percentile(99))
	b.report.addTime(subject, of, "server CPU each", x.each(x.server))
	b.report.addTime(subject, of, "(client CPU each)", x.each(x.client))
}

// verb is one kind of operation.
type verb struct {
	name string
	do   func(ctx context.Context, c *client, t target) error
}

// target holds the URL paths that a verb uses.
type target struct {
	kind       kind
	collection string // where objects are written
	listed     string // the collection that is listed
	name       string
}

func (t target) object() string { return t.collection + "/" + t.name }

func verbs() []verb {
	return []verb{
		{"create", func(ctx context.Context, c *client, t target) error {
			return t.kind.create(ctx, c, t.collection, t.name)
		}},
		{"get", func(ctx context.Context, c *client, t target) error {
			_, err := c.Call(ctx, http.MethodGet, t.object(), t.kind.media, nil)
			return err
		}},
		{"list", func(ctx context.Context, c *client, t target) error {
			_, err := c.Call(ctx, http.MethodGet, t.listed, t.kind.media, nil)
			return err
		}},
		{"update", func(ctx context.Context, c *client, t target) error {
			return t.kind.update(ctx, c, t.object(), "updated")
		}},
		{"delete", func(ctx context.Context, c *client, t target) error {
			_, err := c.Call(ctx, http.MethodDelete, t.object(), t.kind.media, nil)
			return err
		}},
	}
}

// verbs runs one round on one side, in new tenants. A few warm-up operations come first
// and are not counted.
func (b *bench) verbs(ctx context.Context, s *side, k kind, round int) ([]sample, error) {
	var tenants [2]tenant
	for i, role := range []string{"listed", "written"} {
		var err error
		name := fmt.Sprintf("%s-%s-%d", role, strings.ReplaceAll(k.name, " ", ""), round)
		if tenants[i], err = s.newTenant(ctx, s.clients[0], name); err != nil {
			return nil, err
		}
		if k.prepare != nil {
			if err := k.prepare(ctx, s.clients[0], tenants[i]); err != nil {
				return nil, err
			}
		}
	}
	if err := b.populate(ctx, s.clients[0], k, tenants[0]); err != nil {
		return nil, err
	}
	_, listed := k.in(tenants[0])
	collection, _ := k.in(tenants[1])
	var out []sample
	for _, warm := range []bool{true, false} {
		n, prefix := b.plan.operations/b.plan.rounds, "object"
		if warm {
			n, prefix = max(n/20, len(s.clients)), "warm"
		}
		for _, v := range verbs() {
			x, err := s.load(ctx, s.clients, n, func(ctx context.Context, c *client, i int) error {
				return v.do(ctx, c, target{k, collection, listed, fmt.Sprintf("%s-%d", prefix, i)})
			})
			if err != nil {
				return nil, err
			}
			if !warm {
				out = append(out, x)
			}
		}
	}
	return out, nil
}
