package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unforked/kcp/test/child"
)

const (
	namespaces = "/api/v1/namespaces"
	bindings   = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
)

// A load sends requests until it is stopped, and records their answers.
type load struct {
	*world
	steady []string // paths of workspaces that stay
	names  []string // their logical clusters
	until  <-chan struct{}
	serial atomic.Int64

	mu      sync.Mutex
	ops     []op                 // guarded by mu
	probes  []probe              // guarded by mu
	revoked map[string]time.Time // guarded by mu
	deleted map[place]bool       // guarded by mu: namespaces of steady workspaces
	doomed  []string             // guarded by mu: paths of objects that the load deletes
}

func (l *load) ended() bool {
	select {
	case <-l.until:
		return true
	default:
		return false
	}
}

func (l *load) note(o op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, o)
}

// object is one config map.
type object struct {
	*load
	in, name string // the path of its collection
	doomed   bool
	writes   int
}

func (l *load) object(in string, doomed bool) *object {
	return &object{load: l, in: in, name: fmt.Sprint("cm-", l.serial.Add(1)), doomed: doomed}
}

// write creates or updates the object at a server; base makes an update conditional.
func (o *object) write(ctx context.Context, s *server, verb string, base int64) op {
	o.writes++
	done := op{mark: mark{o.name, o.writes}, verb: verb, base: base, doomed: o.doomed}
	meta := map[string]string{"name": o.name}
	if base != 0 {
		meta["resourceVersion"] = strconv.FormatInt(base, 10)
	}
	body := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": map[string]string{"mark": done.String()}}
	method, path := http.MethodPost, o.in
	if verb == "update" {
		method, path = http.MethodPut, o.in+"/"+o.name
	}
	code, answer := s.call(ctx, method, path, body)
	done.code = code
	done.rev, _ = strconv.ParseInt(answer.ResourceVersion, 10, 64) // 0 if there is no answer
	o.note(done)
	return done
}

// remove deletes the object, at any server, until an answer confirms it.
func (o *object) remove(ctx context.Context) {
	for {
		code, _ := o.any().call(ctx, http.MethodDelete, o.in+"/"+o.name, nil)
		done := op{mark: mark{object: o.name}, verb: "delete", code: code, doomed: o.doomed}
		o.note(done)
		if !done.unknown() && code != http.StatusTooManyRequests {
			return
		}
		_ = child.Pause(ctx, 20*time.Millisecond) // after the end of ctx the next answer is 0
		if ctx.Err() != nil {
			return
		}
	}
}

// write creates, updates and mostly deletes one object after the other.
func (l *load) write(ctx context.Context) {
	for !l.ended() {
		o := l.object(l.steady[rand.IntN(len(l.steady))]+namespaces+"/"+[]string{"default", "other"}[rand.IntN(2)]+"/configmaps", false)
		made := o.write(ctx, l.any(), "create", 0)
		if !made.acknowledged() {
			continue // the create may still be done
		}
		base := made.rev
		for range rand.IntN(4) {
			conditional := base * int64(rand.IntN(2))
			if done := o.write(ctx, l.any(), "update", conditional); done.acknowledged() {
				base = done.rev
			}
			_ = child.Pause(ctx, 5*time.Millisecond) // the loop ends by itself
		}
		if rand.IntN(4) > 0 {
			o.remove(ctx)
		}
	}
}

// end creates namespaces and workspaces, and deletes them while objects are created in them.
func (l *load) end(ctx context.Context) {
	for i := 0; !l.ended(); i++ {
		name := fmt.Sprint("gone-", l.serial.Add(1))
		if i%2 == 0 {
			n := rand.IntN(len(l.steady))
			l.mu.Lock()
			l.deleted[place{l.names[n], name}] = true
			l.mu.Unlock()
			body := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]string{"name": name}}
			l.doom(ctx, l.steady[n]+namespaces, name, body, l.steady[n]+namespaces+"/"+name+"/configmaps")
		} else {
			body := map[string]any{"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": map[string]string{"name": name}}
			l.doom(ctx, child.RootWorkspaces, name, body, "/clusters/root:"+name+namespaces+"/default/configmaps")
		}
	}
}

// doom creates the object of body in a collection, and deletes it while other servers create
// config maps in it.
func (l *load) doom(ctx context.Context, in, name string, body any, maps string) {
	l.mu.Lock()
	l.doomed = append(l.doomed, in+"/"+name)
	l.mu.Unlock()
	l.any().call(ctx, http.MethodPost, in, body) // the result does not matter
	ends := make(chan struct{})
	var creating sync.WaitGroup
	for range 2 {
		creating.Go(func() {
			for range 200 {
				select {
				case <-ends:
					return
				default:
				}
				l.object(maps, true).write(ctx, l.any(), "create", 0)
			}
		})
	}
	_ = child.Pause(ctx, time.Duration(rand.IntN(150))*time.Millisecond) // of a random length
	l.any().call(ctx, http.MethodDelete, in+"/"+name, nil)
	_ = child.Pause(ctx, 200*time.Millisecond) // while creates continue
	close(ends)
	creating.Wait()
}

// sweep repeats the deletions of the load, and waits until all objects are gone. A request
// without an answer may have been lost or delayed.
func (l *load) sweep(ctx context.Context) error {
	for _, path := range l.doomed {
		for {
			code, _ := l.settled(ctx, http.MethodDelete, path, nil)
			if code == http.StatusNotFound {
				break
			}
			if err := child.Pause(ctx, 50*time.Millisecond); err != nil {
				return fmt.Errorf("%s is not gone (answer %d): %w", path, code, err)
			}
		}
	}
	return nil
}

// revoke grants users a right, one after the other, and revokes it while they use it at
// all servers.
func (l *load) revoke(ctx context.Context) {
	var using sync.WaitGroup
	defer using.Wait()
	for !l.ended() {
		user := int(l.serial.Add(1)) % users
		name, in := fmt.Sprint("user-", user), l.steady[0]
		l.mu.Lock()
		_, used := l.revoked[name]
		l.mu.Unlock()
		body := map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]string{"name": name},
			"roleRef":  map[string]string{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
			"subjects": []map[string]string{{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name}},
		}
		if code, _ := l.any().call(ctx, http.MethodPost, in+bindings, body); used || code != http.StatusCreated {
			continue // a grant without an answer may be done later
		}
		ends := make(chan struct{})
		for _, s := range l.servers {
			using.Go(func() { l.use(ctx, s, user, ends) })
		}
		_ = child.Pause(ctx, 300*time.Millisecond) // of use
		code, _ := l.settled(ctx, http.MethodDelete, in+bindings+"/"+name, nil)
		if at := time.Now(); code == http.StatusOK || code == http.StatusNotFound {
			l.mu.Lock()
			l.revoked[name] = at
			l.mu.Unlock()
		}
		_ = child.Pause(ctx, 700*time.Millisecond) // of use
		close(ends)
	}
}

// maxUnanswered limits the requests of a user that wait at one server. More would overload a
// slow machine for good.
const maxUnanswered = 10

// use sends requests of a user to a server, up to maxUnanswered without waiting for the
// answers, until ends is closed. It returns when all are answered.
func (l *load) use(ctx context.Context, s *server, user int, ends <-chan struct{}) {
	client, err := s.as(user)
	if err != nil {
		l.t.Error(err)
		return
	}
	defer client.Close()
	var waiting sync.WaitGroup
	defer waiting.Wait()
	unanswered := make(chan struct{}, maxUnanswered)
	for {
		select {
		case unanswered <- struct{}{}:
		case <-ends:
			return
		}
		waiting.Go(func() {
			defer func() { <-unanswered }()
			p := probe{user: fmt.Sprint("user-", user), server: s.name, began: time.Now()}
			ctx, cancel := context.WithTimeout(ctx, answerIn)
			defer cancel()
			_, err := client.Call(ctx, http.MethodGet, l.steady[0]+namespaces+"/default/configmaps?limit=1", child.JSON, nil)
			p.code = code(err, http.MethodGet)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.probes = append(l.probes, p)
		})
		select {
		case <-ends:
			return
		case <-time.After(40 * time.Millisecond):
		}
	}
}
