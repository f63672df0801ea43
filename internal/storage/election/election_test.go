package election_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/election"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

var configMaps = keys.NativeResource(storetest.ConfigMaps())

func TestMain(m *testing.M) {
	etcdtest.Main()
	os.Exit(m.Run())
}

// several opens stores on one etcd, as several processes would do.
func several(t *testing.T, n int, o etcdtest.Options) (*etcdtest.Cluster, []*store.Store) {
	t.Helper()
	members := etcdtest.Start(t, o)
	var all []*store.Store
	for range n {
		s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "1.36", Etcd: etcd.Config{Servers: members.Servers()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		s.Values().Register(configMaps, values.Codec{Codec: storetest.JSON()})
		all = append(all, s)
	}
	return members, all
}

func create(t *testing.T, s *store.Store, c cluster.Name) {
	t.Helper()
	if _, err := s.Commit(t.Context(), nil, store.Fence{Cluster: c, State: store.Active}); err != nil {
		t.Fatal(err)
	}
}

// put creates a config map in a term, which may have ended.
func put(s *store.Store, term context.Context, name string) (int64, error) {
	return s.Commit(context.WithoutCancel(term), []store.Write{{Resource: configMaps, Cluster: "c1", Object: storetest.ConfigMap("ns", name, "")}})
}

// leaderServers and leaderDir are the environment variables with the etcd and the directory of the
// process that TestSeveralElectDuringAlarm kills.
const leaderServers, leaderDir = "ELECTION_TEST_LEADER_SERVERS", "ELECTION_TEST_LEADER_DIR"

// TestSeveralLeader is the process that TestSeveralElectDuringAlarm kills. It prints a line
// when it runs the loops.
func TestSeveralLeader(t *testing.T) {
	servers := os.Getenv(leaderServers)
	if servers == "" {
		t.Skip("run by TestSeveralElectDuringAlarm")
	}
	s, err := store.Open(t.Context(), store.Options{Dir: os.Getenv(leaderDir), Version: "1.36", Etcd: etcd.Config{Servers: strings.Split(servers, ",")}})
	if err != nil {
		t.Fatal(err)
	}
	s.Election().Lead(t.Context(), func(term context.Context) {
		fmt.Println("leads")
		<-term.Done()
	})
}

// startLeader starts a process that runs the loops, and returns a function that kills it.
func startLeader(t *testing.T, servers []string) (kill func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSeveralLeader$")
	cmd.Env = append(os.Environ(), leaderServers+"="+strings.Join(servers, ","), leaderDir+"="+t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // fails only if it has ended
		_ = cmd.Wait()         // returns the signal as an error
	})
	t.Cleanup(kill)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "leads" {
			return kill
		}
	}
	t.Fatal("the process ended before it ran the loops")
	return nil
}

// While etcd refuses writes for lack of space, another process can take over the loops. The
// loops perform the deletions that free space.
func TestSeveralElectDuringAlarm(t *testing.T) {
	members, all := several(t, 1, etcdtest.Options{Quota: 16 << 20})
	s := all[0]
	storetest.StartFeeds(t, s)
	create(t, s, "c1")
	made := map[string]int64{}
	for _, name := range []string{"a", "b"} {
		var err error
		if made[name], err = put(s, t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	kill := startLeader(t, members.Servers())
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	terms := make(chan context.Context, 1)
	running.Go(func() {
		s.Election().Lead(ctx, func(term context.Context) {
			terms <- term
			<-term.Done()
		})
	})
	client := s.RawClient()
	waiting := func() int64 {
		resp, err := client.Get(t.Context(), s.Election().Candidates(), clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return resp.Count
	}
	for waiting() < 2 {
	}
	var err error
	for i := 0; err == nil; i++ {
		_, err = client.Put(t.Context(), fmt.Sprint("/elsewhere/", i), strings.Repeat("x", 1<<20))
	}
	if _, err := client.Grant(t.Context(), election.LeaseSeconds); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Fatalf("etcd still grants leases: %v", err)
	}

	late, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "1.36", Etcd: etcd.Config{Servers: members.Servers()}})
	if err != nil {
		t.Fatalf("a server does not start while etcd is full: %v", err)
	}
	defer late.Close()
	err = late.Election().LeadOnce(t.Context(), func(context.Context) { t.Error("a server without a candidacy runs the loops") })
	if err == nil || !strings.Contains(err.Error(), "kcp defragment") {
		t.Errorf("a server that starts while etcd is full: %v", err)
	}

	kill()
	term := <-terms
	direct := s.Client()
	t.Cleanup(func() { _ = direct.Close() })
	remove := func(name string) error { // as a registry does
		key := s.Prefix() + configMaps.Key("c1", "ns", name).Path()
		_, err := direct.Kubernetes.OptimisticDelete(election.WithTermOf(t.Context(), term), key, made[name], kubernetes.DeleteOptions{})
		return err
	}
	if err := remove("a"); err != nil {
		t.Errorf("a deletion of the new term: %v", err)
	}
	held, err := client.Get(t.Context(), s.Election().Candidates(), clientv3.WithFirstCreate()...)
	if err != nil || len(held.Kvs) != 1 {
		t.Fatal(held, err)
	}
	if _, err := client.Revoke(t.Context(), clientv3.LeaseID(held.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	if err := remove("b"); !errors.Is(err, election.ErrNotLeading) {
		t.Errorf("a deletion after the lease was lost: %v", err)
	}
	<-term.Done()

	// What the error says makes it a candidate, without a restart.
	emptied(t, late)
	led := make(chan struct{})
	running.Go(func() { late.Election().Lead(ctx, func(context.Context) { close(led); cancel() }) })
	<-led
}

// emptied does what the advice for a full etcd says.
func emptied(t *testing.T, s *store.Store) {
	t.Helper()
	client := s.RawClient()
	gone, err := client.Delete(t.Context(), "/elsewhere/", clientv3.WithPrefix())
	if err == nil {
		_, err = client.Compact(t.Context(), gone.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err != nil {
		t.Fatal(err)
	}
	done, err := s.Defragment(t.Context())
	if err != nil || len(done) != 1 || done[0].After >= done[0].Before {
		t.Fatalf("defragmented: %+v, %v", done, err)
	}
}

// A process that lost its lease, for example because it hung, cannot write any more.
func TestLostLease(t *testing.T) {
	_, all := several(t, 2, etcdtest.Options{})
	storetest.StartFeeds(t, all...)
	create(t, all[0], "c1")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	terms := make(chan context.Context)
	lead := func(s *store.Store) {
		running.Go(func() {
			s.Election().Lead(ctx, func(term context.Context) {
				select {
				case terms <- term:
					<-term.Done()
				case <-ctx.Done():
				}
			})
		})
	}
	lead(all[0])
	first := <-terms
	if _, err := put(all[0], first, "a"); err != nil {
		t.Fatal(err)
	}
	lead(all[1])
	held, err := all[0].RawClient().Get(t.Context(), all[0].Election().Candidates(), clientv3.WithFirstCreate()...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := all[0].RawClient().Revoke(t.Context(), clientv3.LeaseID(held.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	if _, err := put(all[0], first, "b"); !errors.Is(err, election.ErrNotLeading) {
		t.Errorf("a write after the lease was lost: %v", err)
	}
	<-first.Done() // it notices the loss
	second := <-terms
	if _, err := put(all[1], second, "c"); err != nil {
		t.Error(err)
	}
	note := func(s *store.Store, term context.Context) error {
		_, err := s.WriteNotes(context.WithoutCancel(term), []store.Note{{Key: keys.SystemKey("c1", "tests", "note"), Value: []byte("x")}})
		return err
	}
	if of, err := note(all[0], first), note(all[1], second); !errors.Is(of, election.ErrNotLeading) || err != nil {
		t.Errorf("notes of the first: %v; of the second: %v", of, err)
	}
	if _, err := put(all[0], first, "d"); !errors.Is(err, election.ErrNotLeading) {
		t.Errorf("a write in an old term: %v", err)
	}
}
