package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/test/child"
)

const (
	processes = 3 // of kcp, and members of etcd
	users     = 1000
)

// A world is several kcp processes on one etcd.
type world struct {
	t       *testing.T
	etcd    *etcdtest.Cluster
	history *history
	servers []*server
}

// A server is a kcp process with a link to each member of etcd. It has a new address after each
// start.
type server struct {
	name, binary, dir, tokens string
	links                     []*link

	mu  sync.Mutex
	kcp *child.KCP // guarded by mu
	api *child.Client
}

// start starts all processes; they end with the test.
func start(t *testing.T) *world {
	t.Helper()
	binary := kcp(t)
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	var lines strings.Builder
	for i := range users {
		fmt.Fprintf(&lines, "token-%d,user-%d,%d\n", i, i, i)
	}
	if err := os.WriteFile(tokens, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, etcd: etcdtest.Start(t, etcdtest.Options{Members: processes})}
	w.history = record(t, w.etcd)
	errs := make([]error, processes)
	var starting sync.WaitGroup
	for i := range processes {
		s := &server{name: fmt.Sprint("kcp-", i), binary: binary, dir: t.TempDir(), tokens: tokens}
		for _, m := range w.etcd.Members {
			s.links = append(s.links, newLink(t, strings.TrimPrefix(m.URL(), "http://")))
		}
		w.servers = append(w.servers, s)
		starting.Go(func() { errs[i] = s.start(t.Context()) })
		t.Cleanup(s.kill)
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return w
}

// kcp returns the program to test, which make has built.
func kcp(t *testing.T) string {
	t.Helper()
	file, err := filepath.Abs("../../bin/kcp")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatal("bin/kcp is missing; make build builds it")
	}
	return file
}

// start starts the process, and returns when it is ready.
func (s *server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var members []string
	for _, l := range s.links {
		members = append(members, "http://"+l.address())
	}
	k, err := child.Start(ctx, s.binary, s.dir, "--etcd-servers="+strings.Join(members, ","), "--etcd-compaction-interval=0",
		"--token-auth-file="+s.tokens, "--shard-external-url=https://kcp.example.com")
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	// The server in the file may be the external URL, which is not reachable here.
	admin := rest.CopyConfig(k.Admin)
	admin.Host = k.URL
	k.Admin = admin
	api, err := child.NewClient(admin)
	if err != nil {
		k.Stop()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kcp, s.api = k, api
	return nil
}

// now returns the process and a client of its administrator.
func (s *server) now() (*child.KCP, *child.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kcp, s.api
}

// signal sends the process a signal.
func (s *server) signal(sig syscall.Signal) error {
	k, _ := s.now()
	return syscall.Kill(k.PID(), sig) // its process id is still valid, unless it has ended by itself
}

// kill ends the process at once.
func (s *server) kill() {
	k, api := s.now()
	if k == nil {
		return
	}
	select {
	case <-k.Done():
	default:
		_ = syscall.Kill(k.PID(), syscall.SIGKILL) // it may have ended
		<-k.Done()
	}
	api.Close()
}

// as returns a client of a user, with a connection of its own. The caller closes it.
func (s *server) as(user int) (*child.Client, error) {
	k, _ := s.now()
	config := rest.AnonymousClientConfig(k.Admin)
	config.BearerToken = fmt.Sprint("token-", user)
	return child.NewClient(config)
}

// any returns a random server, except those to avoid.
func (w *world) any(avoid ...*server) *server {
	for {
		s := w.servers[rand.IntN(len(w.servers))]
		if len(avoid) == 0 || s != avoid[0] {
			return s
		}
	}
}

// leader returns the server that runs the loops.
func (w *world) leader(ctx context.Context) (*server, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute/2, errors.New("no process runs the loops"))
	defer cancel()
	for {
		pid := w.history.leader()
		for _, s := range w.servers {
			if k, _ := s.now(); k.PID() == pid {
				return s, nil
			}
		}
		if child.Pause(ctx, 20*time.Millisecond) != nil {
			return nil, context.Cause(ctx)
		}
	}
}

const (
	// answerIn is the timeout for answers. It is longer than any stop of a process.
	answerIn = 30 * time.Second
	// writeIn is the timeout for writes, so that the load continues while a process is stopped.
	writeIn = 3 * time.Second
)

// call sends one request as the administrator, and returns the status of the answer, 0
// if there is none, and the metadata in it.
func (s *server) call(ctx context.Context, method, path string, body any) (int, metav1.ObjectMeta) {
	ctx, cancel := context.WithTimeout(ctx, writeIn)
	defer cancel()
	_, api := s.now()
	var b []byte
	if body != nil {
		b, _ = json.Marshal(body) // maps of strings
	}
	answer, err := api.Call(ctx, method, path, child.JSON, b)
	var object metav1.PartialObjectMetadata
	if err == nil {
		err = json.Unmarshal(answer, &object)
	}
	return code(err, method), object.ObjectMeta
}

// code returns the status of an answer, and 0 if there is none.
func code(err error, method string) int {
	var status apierrors.APIStatus
	switch {
	case err == nil && method == http.MethodPost:
		return http.StatusCreated
	case err == nil:
		return http.StatusOK
	case errors.As(err, &status):
		return int(status.Status().Code)
	}
	return 0
}

// settled sends a request to any server until the answer is neither 429 nor 5xx, and returns
// that answer.
func (w *world) settled(ctx context.Context, method, path string, body any) (int, metav1.ObjectMeta) {
	for {
		code, meta := w.any().call(ctx, method, path, body)
		if code >= 200 && code < 500 && code != http.StatusTooManyRequests || ctx.Err() != nil {
			return code, meta
		}
		_ = child.Pause(ctx, 20*time.Millisecond) // the loop looks at ctx
	}
}
