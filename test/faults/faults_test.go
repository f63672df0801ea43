// Package faults tests the guarantees of several kcp processes on one etcd while processes die
// and hang, and the network fails.
package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/test/child"
)

func TestMain(m *testing.M) {
	onDisk()
	etcdtest.Main()
	os.Exit(m.Run())
}

// long reports whether to run the long form, which takes minutes.
func long() bool { return os.Getenv("NIGHTLY") != "" }

// A fault breaks a component and repairs it.
type fault struct {
	name string
	hit  func(context.Context, *run) error
}

// A run is a load with its faults.
type run struct {
	*load
	stay      map[string]bool // logical clusters from before the load
	takeovers []takeover
}

// TestFaults runs a load through three processes on three members of etcd, breaks them one after
// the other, and compares the answers with the history of etcd. With NIGHTLY=1 it runs all
// faults several times, otherwise two faults.
func TestFaults(t *testing.T) {
	faults := smoke()
	rounds := 1
	if long() {
		faults, rounds = all(), 3
	}
	r, wait := begin(t, start(t))
	for range rounds {
		rand.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, f := range faults {
			began := time.Now()
			err := f.hit(t.Context(), r)
			if err == nil {
				err = r.calm(t.Context())
			}
			t.Logf("%6.1f s: %s", time.Since(began).Seconds(), f.name)
			if err != nil {
				t.Errorf("%s: %v", f.name, err)
			}
		}
	}
	wait()
	r.check()
}

// begin starts the load. The returned function ends it and waits for all answers.
func begin(t *testing.T, w *world) (*run, func()) {
	t.Helper()
	until := make(chan struct{})
	l := &load{world: w, until: until, revoked: map[string]time.Time{}, deleted: map[place]bool{}}
	for i := range 2 {
		_, api := w.servers[i].now()
		name := fmt.Sprint("steady-", i)
		if _, err := child.MakeWorkspace(t.Context(), api, child.RootWorkspaces, name); err != nil {
			t.Fatal(err)
		}
		path := "/clusters/root:" + name
		body := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]string{"name": "other"}}
		if code, _ := w.settled(t.Context(), http.MethodPost, path+namespaces, body); code != http.StatusCreated {
			t.Fatalf("a namespace in %s: %d", path, code)
		}
		_, meta := w.settled(t.Context(), http.MethodGet, path+namespaces+"/other", nil)
		in := meta.Annotations["kcp.io/cluster"]
		if in == "" {
			t.Fatalf("no annotation kcp.io/cluster on %s of %s", meta.Name, path)
		}
		l.steady, l.names = append(l.steady, path), append(l.names, in)
	}
	r := &run{load: l, stay: w.history.clusters()}
	for _, name := range l.names {
		r.stay[name] = true // the history may not have it yet
	}
	var loading sync.WaitGroup
	for range 3 {
		loading.Go(func() { l.write(t.Context()) })
	}
	for range 2 {
		loading.Go(func() { l.end(t.Context()) })
		loading.Go(func() { l.revoke(t.Context()) })
	}
	end := sync.OnceFunc(func() {
		close(until)
		loading.Wait()
	})
	t.Cleanup(end)
	return r, end
}

// smoke are the faults of the short form.
func smoke() []fault {
	return []fault{{"the process that runs the loops is killed", killLeader}, {"a process is stopped, and history compacted", stopAndCompact}}
}

// all are the faults of the long form.
func all() []fault {
	return append(smoke(),
		fault{"the process that runs the loops is stopped", stopLeader},
		fault{"a process is killed", killServer},
		fault{"a process loses etcd", cutServer},
		fault{"a process has a slow network", slowServer},
		fault{"a member has a slow network", slowMember},
		fault{"a member is killed", killMember},
		fault{"a member is stopped", stopMember},
		fault{"etcd's leader is killed", killEtcdLeader},
		fault{"etcd's leader moves", moveEtcdLeader},
		fault{"etcd has no quorum", noQuorum},
	)
}

// calm returns when all servers have acknowledged a write after the last fault.
func (r *run) calm(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("a minute after the fault a write is not acknowledged"))
	defer cancel()
	for _, s := range r.servers {
		for {
			o := r.object(r.steady[0]+namespaces+"/default/configmaps", false)
			done := o.write(ctx, s, "create", 0)
			if done.acknowledged() {
				break
			}
			if err := child.Pause(ctx, 50*time.Millisecond); err != nil {
				return fmt.Errorf("%s: %s: %w", s.name, done, err)
			}
		}
	}
	return child.Pause(ctx, time.Second)
}

// takeover breaks the process that runs the loops, and measures how long another one takes
// to finish the deletion of a namespace.
func (r *run) takeover(ctx context.Context, how string, hit func(*server) error) (*server, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the loops are not taken over within a minute"))
	defer cancel()
	s, err := r.leader(ctx)
	if err != nil {
		return nil, err
	}
	other, in, name := r.any(s), r.steady[0]+namespaces, fmt.Sprint("taken-", r.serial.Add(1))
	body := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]string{"name": name}}
	if code, _ := other.call(ctx, http.MethodPost, in, body); code != http.StatusCreated {
		return nil, fmt.Errorf("a namespace for the loops: answer %d", code)
	}
	if err := hit(s); err != nil {
		return s, err
	}
	began := time.Now()
	for code := 0; code != http.StatusNotFound; {
		if code, _ = other.call(ctx, http.MethodDelete, in+"/"+name, nil); ctx.Err() != nil {
			return s, context.Cause(ctx)
		}
		_ = child.Pause(ctx, 20*time.Millisecond) // the loop looks at ctx
	}
	took := time.Since(began)
	r.takeovers = append(r.takeovers, takeover{how, took})
	r.t.Logf("%s: the loops were taken over after %v", how, took)
	return s, nil
}

func killLeader(ctx context.Context, r *run) error {
	s, err := r.takeover(ctx, "killed", func(s *server) error { s.kill(); return nil })
	if s == nil {
		return err
	}
	return errors.Join(err, s.start(ctx))
}

func stopLeader(ctx context.Context, r *run) error {
	s, err := r.takeover(ctx, "stopped", func(s *server) error { return s.signal(syscall.SIGSTOP) })
	if s == nil {
		return err
	}
	return errors.Join(err, s.signal(syscall.SIGCONT))
}

func killServer(ctx context.Context, r *run) error {
	s := r.any()
	s.kill()
	return errors.Join(child.Pause(ctx, time.Second), s.start(ctx))
}

func stopAndCompact(ctx context.Context, r *run) error {
	s := r.any()
	if err := s.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := child.Pause(ctx, 4*time.Second)
	return errors.Join(err, r.history.compact(ctx), s.signal(syscall.SIGCONT))
}

func cutServer(ctx context.Context, r *run) error {
	s := r.any()
	for _, l := range s.links {
		l.broken(true)
		defer l.broken(false)
	}
	return child.Pause(ctx, 4*time.Second)
}

func slowServer(ctx context.Context, r *run) error {
	return slow(ctx, r.any().links)
}

func slowMember(ctx context.Context, r *run) error {
	var links []*link
	m := rand.IntN(processes)
	for _, s := range r.servers {
		links = append(links, s.links[m])
	}
	return slow(ctx, links)
}

func slow(ctx context.Context, links []*link) error {
	for _, l := range links {
		l.late(time.Duration(20+rand.IntN(200)) * time.Millisecond)
		defer l.late(0)
	}
	return child.Pause(ctx, 4*time.Second)
}

func killMember(ctx context.Context, r *run) error {
	return killMembers(ctx, r.etcd.Members[rand.IntN(processes)])
}

func killMembers(ctx context.Context, members ...*etcdtest.Member) error {
	for _, m := range members {
		m.Kill()
	}
	err := child.Pause(ctx, 3*time.Second)
	for _, m := range members {
		m.Start()
	}
	for _, m := range members {
		m.Ready()
	}
	return err
}

func stopMember(ctx context.Context, r *run) error {
	m := r.etcd.Members[rand.IntN(processes)]
	m.Hang()
	defer m.Resume()
	return child.Pause(ctx, 4*time.Second)
}

func noQuorum(ctx context.Context, r *run) error {
	members := slices.Clone(r.etcd.Members)
	rand.Shuffle(processes, func(i, j int) { members[i], members[j] = members[j], members[i] })
	return killMembers(ctx, members[:2]...)
}

// etcdLeader returns the index of etcd's leader among the members, and its status.
func (w *world) etcdLeader(ctx context.Context) (int, *clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	for i, m := range w.etcd.Members {
		status, err := w.history.client.Status(ctx, m.URL())
		if err != nil {
			return 0, nil, err
		}
		if status.Leader == status.Header.MemberId {
			return i, status, nil
		}
	}
	return 0, nil, errors.New("etcd has no leader")
}

func killEtcdLeader(ctx context.Context, r *run) error {
	i, _, err := r.etcdLeader(ctx)
	if err != nil {
		return err
	}
	return killMembers(ctx, r.etcd.Members[i])
}

func moveEtcdLeader(ctx context.Context, r *run) error {
	i, _, err := r.etcdLeader(ctx)
	if err != nil {
		return err
	}
	next, err := r.history.client.Status(ctx, r.etcd.Members[(i+1)%processes].URL())
	if err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{r.etcd.Members[i].URL()}}) // only the leader can move
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.MoveLeader(ctx, next.Header.MemberId)
	return err
}

// check waits for the deletions of the load, and checks all records.
func (r *run) check() {
	r.t.Helper()
	ctx, cancel := context.WithTimeoutCause(r.t.Context(), 2*time.Minute, errors.New("two minutes after the last fault"))
	defer cancel()
	if err := r.sweep(ctx); err != nil {
		r.t.Error(err)
	}
	events, err := r.history.whole(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	wrong := slices.Concat(checkWrites(r.ops, events), checkObjects(r.ops, events), checkOrphans(events, r.stay, r.deleted),
		checkRevoked(r.probes, r.revoked))
	if long() { // needs an idle machine
		wrong = append(wrong, checkTakeovers(r.takeovers)...)
	}
	for i, text := range wrong {
		if i == 50 {
			r.t.Errorf("and %d more", len(wrong)-i)
			break
		}
		r.t.Error(text)
	}
	var acknowledged, refused, allowed int
	for _, o := range r.ops {
		acknowledged += count(o.acknowledged())
		refused += count(o.refused())
	}
	for _, p := range r.probes {
		allowed += count(p.code == http.StatusOK)
	}
	r.t.Logf("%d writes, of which %d acknowledged and %d refused; %d events in etcd; %d deleted namespaces and workspaces; %d rights revoked, %d requests with them, of which %d allowed",
		len(r.ops), acknowledged, refused, len(events), len(r.doomed), len(r.revoked), len(r.probes), allowed)
	if acknowledged == 0 || refused == 0 || allowed == 0 || len(r.revoked) == 0 || len(r.doomed) == 0 {
		r.t.Error("the load did not test anything")
	}
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}
