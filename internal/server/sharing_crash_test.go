package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// A recording has the content of an etcd after each of its revisions.
type recording struct {
	t      *testing.T
	client *clientv3.Client
	steps  []storyStep
	base   map[string]string
	events []*clientv3.Event // after base
	ends   []int64           // last revision of each step
	wants  []string          // outline after each step
}

// content returns what etcd has now, and its revision. Keys with a lease end with their process.
func (r *recording) content() (map[string]string, int64) {
	r.t.Helper()
	resp := must(r.client.Get(r.t.Context(), "", clientv3.WithFromKey()))(r.t)
	all := make(map[string]string, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		if kv.Lease == 0 {
			all[string(kv.Key)] = string(kv.Value)
		}
	}
	return all, resp.Header.Revision
}

// record reads the events up to a revision.
func (r *recording) record(from, to int64) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for resp := range r.client.Watch(ctx, "", clientv3.WithFromKey(), clientv3.WithRev(from+1)) {
		if resp.Err() != nil {
			r.t.Fatal(resp.Err())
		}
		for _, e := range resp.Events {
			if e.Kv.ModRevision <= to {
				r.events = append(r.events, e)
			}
		}
		if resp.Header.Revision >= to {
			return
		}
	}
	r.t.Fatal("the recording is not complete")
}

// at returns the content at a revision.
func (r *recording) at(rev int64) map[string]string {
	all := maps.Clone(r.base)
	for _, e := range r.events {
		switch {
		case e.Kv.ModRevision > rev || e.Kv.Lease != 0:
		case e.Type == clientv3.EventTypeDelete:
			delete(all, string(e.Kv.Key))
		default:
			all[string(e.Kv.Key)] = string(e.Kv.Value)
		}
	}
	return all
}

// rewind gives etcd the content that it had at a revision, as a process that was killed then has
// left it. No server may run.
func (r *recording) rewind(rev int64) {
	r.t.Helper()
	want := r.at(rev)
	now, _ := r.content()
	for key := range now {
		if _, ok := want[key]; !ok {
			must(r.client.Delete(r.t.Context(), key))(r.t)
		}
	}
	for key, value := range want {
		if old, ok := now[key]; !ok || old != value {
			must(r.client.Put(r.t.Context(), key, value))(r.t)
		}
	}
}

// incidental matches the parts of objects that may differ between equal states: UIDs, identities,
// times, names of clusters and of default bindings, and counts of changes.
var incidental = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{64}|20\d\d-\d\d-\d\dT[0-9:.]+Z|((tenancy|topology|shards|cache)\.kcp\.io|widgets)-[a-z0-9]{5}\b|"(generation|observedGeneration|resourceVersion)":"?\d+"?`)

// passing are parts of keys whose objects depend on the time, and of names, which only grow.
var passing = []string{"/events/", "/s/core/names/", "/s/core/usage/"}

// outline describes the state of sharing: the keys, and the objects that users see.
func outline(content map[string]string) string {
	var names []string // of the cluster of the workspace, which is another if it is made again
	for key, value := range content {
		if strings.HasSuffix(key, "/story-provider/kept") && strings.Contains(key, "/workspaces/") {
			names = append(names, text(decoded("%s", value), "spec", "cluster"), "<kept>")
		}
	}
	rename := strings.NewReplacer(names...)
	var lines []string
	for key, value := range content {
		line := key
		if slices.ContainsFunc(passing, func(part string) bool { return strings.Contains(key, part) }) {
			continue
		}
		if strings.HasPrefix(value, "{") && strings.Contains(key, ".kcp.io/") || strings.Contains(key, "/widgets/") {
			o := decoded("%s", value)
			o.SetManagedFields(nil)
			o.SetOwnerReferences(nil)
			data, _ := json.Marshal(o.Object)
			line += " " + string(data)
		}
		lines = append(lines, incidental.ReplaceAllString(rename.Replace(line), "<>"))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// quiet waits until etcd has not changed for a moment, and returns its revision.
func (r *recording) quiet() int64 {
	r.t.Helper()
	for {
		_, rev := r.content()
		ctx, cancel := context.WithTimeout(r.t.Context(), 150*time.Millisecond)
		_, changed := <-r.client.Watch(ctx, "", clientv3.WithFromKey(), clientv3.WithRev(rev+1))
		cancel()
		if !changed {
			return rev
		}
	}
}

// becomes waits until the outline is as wanted.
func (r *recording) becomes(want string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience/4)
	defer cancel()
	for {
		now, rev := r.content()
		got := outline(now)
		if got == want {
			return
		}
		select {
		case <-r.client.Watch(ctx, "", clientv3.WithFromKey(), clientv3.WithRev(rev+1)):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			r.t.Fatalf("the state differs from that without a crash (-want +got):\n%s", cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
		}
	}
}

// tell runs the story once without crashes.
func (r *recording) tell(s *story) {
	r.t.Helper()
	var from int64
	r.base, from = r.content()
	for _, step := range r.steps {
		step.do(s)
		r.ends = append(r.ends, r.quiet())
		now, _ := r.content()
		r.wants = append(r.wants, outline(now))
	}
	r.record(from, r.ends[len(r.ends)-1])
}

// A crash is a revision after which the process was killed in a step.
type crash struct {
	revision int64
	step     int
	last     string // written key
}

// crashes returns the revisions at which a step has begun and has not ended.
func (r *recording) crashes() []crash {
	var all []crash
	for _, e := range r.events {
		rev := e.Kv.ModRevision
		step, _ := slices.BinarySearch(r.ends, rev)
		c := crash{rev, step, string(e.Kv.Key)}
		if n := len(all); n > 0 && all[n-1].revision == rev {
			all[n-1] = c
			continue
		}
		all = append(all, c)
	}
	return slices.DeleteFunc(all, func(c crash) bool { return c.revision == r.ends[c.step] })
}

// owned fails the test if an object of the consumer belongs to no binding, or a resource that is
// bound has no definition.
func owned(t *testing.T, content map[string]string, when string) {
	t.Helper()
	bound := map[string]bool{}
	for key, value := range content {
		if !strings.Contains(key, "/apibindings/-/") {
			continue
		}
		parts := strings.Split(key, "/")
		o := decoded("%s", value)
		resources, _, _ := unstructured.NestedSlice(o.Object, "status", "boundResources")
		for _, r := range resources {
			schema := r.(map[string]any)["schema"].(map[string]any)
			bound[fmt.Sprint(schema["identityHash"], "/", parts[len(parts)-2])] = true
			if _, ok := content[fmt.Sprint("/registry/n/apiextensions.k8s.io/customresourcedefinitions/-/system:bound-crds/", schema["UID"])]; !ok {
				t.Errorf("%s: %s is bound to a schema without a definition: %v", when, key, schema)
			}
		}
	}
	for key := range content {
		if rest, ok := strings.CutPrefix(key, "/registry/c/example.com/widgets/"); ok {
			if parts := strings.Split(rest, "/"); !bound[parts[0]+"/"+parts[1]] {
				t.Errorf("%s: %s belongs to no binding", when, key)
			}
		}
	}
}

// TestACrashAtAnyCommit shows that sharing goes on after a server was killed between any two of
// its writes: the next server reaches the state that one without a crash reaches.
func TestACrashAtAnyCommit(t *testing.T) { crashAtAnyCommit(t, sharingStory) }

// TestACrashAtAnyCommitOfARollout is [TestACrashAtAnyCommit] for rollouts: a ring, a stop, other
// schemas, the end in the export, a return, and a deleted export.
func TestACrashAtAnyCommitOfARollout(t *testing.T) { crashAtAnyCommit(t, rolloutStory) }

func crashAtAnyCommit(t *testing.T, steps []storyStep) {
	e := startEquals(t, 1, etcdtest.Options{})
	client := must(clientv3.New(clientv3.Config{Endpoints: e.etcd.Servers()}))(t)
	t.Cleanup(func() { _ = client.Close() })
	r, uids := &recording{t: t, client: client, steps: steps}, map[string]types.UID{}
	s := &running{Server: e.all[0]}
	for _, c := range storyClusters() {
		e.ok(s.MakeCluster(t.Context(), c))
	}
	r.tell(storyOn(t, s, uids))
	s.Close()
	all := r.crashes()
	for _, c := range all {
		owned(t, r.at(c.revision), steps[c.step].name)
	}
	t.Logf("%d commits in %d steps", len(all), len(steps))
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, c := range all[:min(len(all), size(3, len(all)))] {
		t.Run(fmt.Sprintf("%s, commit %d", steps[c.step].name, c.revision), func(t *testing.T) {
			t.Logf("the last write is of %s", c.last)
			r.t = t
			r.rewind(c.revision)
			s := &running{Server: must(e.start())(t)}
			defer s.Close()
			steps[c.step].do(storyOn(t, s, maps.Clone(uids)))
			r.becomes(r.wants[c.step])
		})
	}
}

const (
	storyDir  = "KCP_TEST_STORY_DIR"
	storyLast = "KCP_TEST_STORY_LAST" // the number of the step after which the process waits
)

// TestAStoryUntilItIsKilled is the server process that [TestSharingGoesOnAfterAKill] kills.
func TestAStoryUntilItIsKilled(t *testing.T) {
	dir := os.Getenv(storyDir)
	if dir == "" {
		t.Skip("only in a process of its own")
	}
	s, uids := start(t, dir), map[string]types.UID{}
	for _, c := range storyClusters() {
		if err := s.MakeCluster(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for i, step := range sharingStory {
		known, _ := json.Marshal(uids) // strings always encode
		fmt.Printf("step %d %s\n", i, known)
		step.do(storyOn(t, s, uids))
		if fmt.Sprint(i) == os.Getenv(storyLast) {
			break
		}
	}
	select {}
}

// TestSharingGoesOnAfterAKill is [TestACrashAtAnyCommit] with a process that is killed, and its own
// etcd.
func TestSharingGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	for range size(1, 10) {
		step, dir, uids := 1+rand.IntN(len(sharingStory)-1), t.TempDir(), map[string]types.UID{}
		t.Logf("killed in the step %s", sharingStory[step].name)
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAStoryUntilItIsKilled$", "-test.v")
		child.Env = append(os.Environ(), storyDir+"="+dir, fmt.Sprint(storyLast, "=", step))
		child.Stderr = os.Stderr
		out := must(child.StdoutPipe())(t)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines, prefix := bufio.NewScanner(out), fmt.Sprintf("step %d ", step)
		var said []string
		for lines.Scan() && !strings.HasPrefix(lines.Text(), prefix) {
			said = append(said, lines.Text())
		}
		line := lines.Text()
		if err := errors.Join(child.Process.Kill(), lines.Err()); err != nil || json.Unmarshal([]byte(strings.TrimPrefix(line, prefix)), &uids) != nil {
			t.Fatalf("the process ended before it was killed: %v\n%s", err, strings.Join(said, "\n"))
		}
		_ = child.Wait() // returns the signal as an error
		s := start(t, dir)
		for _, next := range sharingStory[step:] {
			next.do(storyOn(t, s, uids))
		}
		s.Close()
	}
}

// TestAnEndpointEndsAfterARestart shows that the URL of a view goes with the last binding, also if
// that was made before the server started.
func TestAnEndpointEndsAfterARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 2 {
		s := start(t, dir)
		if i == 0 {
			for _, c := range storyClusters() {
				if err := s.MakeCluster(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
		}
		story := storyOn(t, s, map[string]types.UID{})
		if i == 0 {
			for _, step := range sharingStory[:3] { // until it is bound
				step.do(story)
			}
		} else {
			story.consumer.without(apiBindings, "b")
			story.provider.await(apiSlices, "", "widgets", func(o *unstructured.Unstructured) bool {
				return !containsAll(fmt.Sprint(o.Object["status"]), []string{viewPath})
			})
		}
		s.Close()
	}
}
