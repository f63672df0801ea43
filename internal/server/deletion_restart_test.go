package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// start starts a server for one test.
func start(t testing.TB, dir string) *running {
	t.Helper()
	s, err := server.New(t.Context(), server.Config{Dir: dir, NoSync: true, ExternalURL: "https://kcp"})
	if err != nil {
		t.Fatal(err)
	}
	return &running{Server: s, dir: dir, url: "https://kcp"}
}

// tree creates workspaces below a cluster: wide per cluster, deep levels. It returns their
// clusters.
func tree(t *testing.T, s *running, top cluster.Name, wide, deep int) []cluster.Name {
	t.Helper()
	in := at(t, s, top, server.System())
	var all []cluster.Name
	for i := range wide {
		w := in.workspace(fmt.Sprintf("w%d", i))
		all = append(all, w.name)
		if deep > 1 {
			all = append(all, tree(t, s, w.name, wide, deep-1)...)
		}
	}
	return all
}

// counts returns the number of keys per resource.
func counts(t testing.TB, s *running) map[string]int {
	t.Helper()
	resp, err := s.Store().RawClient().Get(t.Context(), "", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, kv := range resp.Kvs {
		parts := strings.Split(string(kv.Key), "/")
		if len(parts) < 5 || strings.HasPrefix(string(kv.Key), "/registry/s/core/usage/") && parts[len(parts)-1] == "until" {
			continue // keys of the server about all data, of which the mark of usage is written at any time
		}
		all[strings.Join(parts[:min(5, len(parts))], "/")]++
	}
	return all
}

func differences(before, after map[string]int) string {
	var s strings.Builder
	for k, n := range after {
		if n != before[k] {
			fmt.Fprintf(&s, "%s: %d instead of %d\n", k, n, before[k])
		}
	}
	return s.String()
}

// ownClusters is the number of clusters that a server without workspaces has: root, system:admin,
// system:bound-crds and system:shard.
const ownClusters = 4

// whenFewer waits until etcd contains fewer than n clusters.
func whenFewer(t testing.TB, s *running, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	fences := "/registry/s/core/fences/"
	w := s.Store().RawClient().Watch(ctx, fences, clientv3.WithPrefix())
	for {
		resp, err := s.Store().RawClient().Get(ctx, fences, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		if resp.Count < int64(n) {
			return
		}
		<-w
	}
}

func TestADeletionGoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	before := counts(t, s)
	all := tree(t, s, cluster.Root, 5, 3)
	for i := range 5 {
		at(t, s, cluster.Root, server.System()).deleteWorkspace(fmt.Sprintf("w%d", i))
	}
	// The deletion is interrupted several times at different points.
	for n := len(all); n > 10; n -= size(75, 25) {
		whenFewer(t, s, n)
		s.Close()
		s = start(t, dir)
	}
	defer func() { s.Close() }()
	whenFewer(t, s, ownClusters+1)
	for i := range 5 {
		at(t, s, cluster.Root, server.System()).await(workspaces, "", fmt.Sprintf("w%d", i), gone)
	}
	if d := differences(before, counts(t, s)); d != "" {
		t.Errorf("left behind:\n%s", d)
	}

}

func TestClustersThatLostTheirWorkspaceAreDeleted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	before := counts(t, s)
	root := at(t, s, cluster.Root, server.System())
	lost, replaced := root.workspace("lost"), root.workspace("replaced")
	below := lost.workspace("below")
	for _, key := range left(t, s.Store(), cluster.Root) {
		if strings.HasSuffix(key, "/root/lost") {
			must(s.Store().RawClient().Delete(t.Context(), key))(t)
		}
		if strings.HasSuffix(key, "/root/replaced") {
			resp := must(s.Store().RawClient().Get(t.Context(), key))(t)
			ws := must(root.any.Resource(workspaces).Get(t.Context(), "replaced", metav1.GetOptions{}))(t)
			other := strings.ReplaceAll(string(resp.Kvs[0].Value), string(ws.GetUID()), "another")
			must(s.Store().RawClient().Put(t.Context(), key, strings.ReplaceAll(other, string(replaced.name), "elsewhere")))(t)
		}
	}
	s.Close()
	s = start(t, dir)
	defer func() { s.Close() }()
	for _, c := range []*tenant{lost, replaced, below} {
		at(t, s, c.name, server.System()).await(logicalClusters, "", "cluster", gone)
	}
	root = at(t, s, cluster.Root, server.System())
	root.deleteWorkspace("replaced")
	root.await(workspaces, "", "replaced", gone)
	if d := differences(before, counts(t, s)); d != "" {
		t.Errorf("left behind:\n%s", d)
	}
}

const childDir = "KCP_TEST_CHILD_DIR"

// halfWay is the line that the process prints when half of the workspaces are deleted.
const halfWay = "half way"

// TestKilled is the server process that [TestADeletionGoesOnAfterAKill] kills.
func TestKilled(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("only in a process of its own")
	}
	s := start(t, dir)
	all := tree(t, s, cluster.Root, 4, 3)
	for i := range 4 {
		at(t, s, cluster.Root, server.System()).deleteWorkspace(fmt.Sprintf("w%d", i))
	}
	whenFewer(t, s, len(all)/2)
	fmt.Println(halfWay)
	select {}
}

func TestADeletionGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^TestKilled$", "-test.v")
	child.Env = append(os.Environ(), childDir+"="+dir)
	out := must(child.StdoutPipe())(t)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var said []string
	for lines.Scan() && !strings.Contains(lines.Text(), halfWay) {
		said = append(said, lines.Text())
	}
	if err := errors.Join(lines.Err(), child.Process.Kill()); err != nil || !strings.Contains(lines.Text(), halfWay) {
		t.Fatalf("the process ended before it was killed: %v\n%s", err, strings.Join(said, "\n"))
	}
	_ = child.Wait() // returns the signal as an error
	s := start(t, dir)
	defer func() { s.Close() }()
	for i := range 4 {
		at(t, s, cluster.Root, server.System()).await(workspaces, "", fmt.Sprintf("w%d", i), gone)
	}
	for key, n := range counts(t, s) {
		if strings.HasSuffix(key, "/fences") && n != ownClusters || strings.HasSuffix(key, "/workspaces") {
			t.Errorf("left behind: %d of %s\n%s", n, key, strings.Join(said, "\n"))
		}
	}
}
