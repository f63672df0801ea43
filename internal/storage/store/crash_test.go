package store

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
)

// writerDir is the environment variable with the directory of the process that TestKilled
// kills.
const writerDir = "STORE_TEST_WRITER_DIR"

// TestWriter is the process that TestKilled kills. It prints each acknowledged write.
func TestWriter(t *testing.T) {
	dir := os.Getenv(writerDir)
	if dir == "" {
		t.Skip("run by TestKilled")
	}
	s, err := Open(t.Context(), Options{Dir: dir, Version: "1.36"})
	if err != nil {
		t.Fatal(err)
	}
	cm := configMapsOf(t, s)
	for _, c := range []cluster.Name{"c1", "c2"} {
		if state, err := s.State(t.Context(), c); err != nil || state == Gone {
			create(t, s, c)
		}
	}
	run := rand.Uint32()
	var said sync.Mutex
	var writers sync.WaitGroup
	for writer := range 4 {
		c := []cluster.Name{"c1", "c2"}[writer%2]
		writers.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("x%d-%d-%d", run, writer, i)
				var out corev1.ConfigMap
				if err := cm.Create(in(c), cmRoot+"/ns/"+name, configMap("ns", name, name), &out, 0); err != nil {
					t.Error(err)
					return
				}
				said.Lock()
				fmt.Printf("wrote %s %s %s\n", c, name, out.ResourceVersion)
				said.Unlock()
			}
		})
	}
	writers.Wait()
}

// A process that is killed during writes keeps all acknowledged writes through several
// restarts. The next process starts at once.
func TestKilled(t *testing.T) {
	lives := 5
	if testing.Short() {
		lives = 2
	}
	dir, wrote := t.TempDir(), map[string]string{}
	for life := range lives {
		for line := range killed(t, dir, rand.IntN(60)) {
			c, rest, _ := strings.Cut(line, " ")
			name, rev, _ := strings.Cut(rest, " ")
			wrote[c+" "+name] = rev
		}
		s, cm, stop := open(t, dir)
		for at, rev := range wrote {
			c, name, _ := strings.Cut(at, " ")
			var got corev1.ConfigMap
			if err := cm.Get(in(cluster.Name(c)), cmRoot+"/ns/"+name, storage.GetOptions{}, &got); err != nil || got.ResourceVersion != rev || got.Data["v"] != name {
				t.Errorf("life %d: %s in %s at %s was acknowledged, got %v, %v", life, name, c, rev, got.ResourceVersion, err)
			}
		}
		exact(t, s, "after a crash")
		stop()
	}
	if len(wrote) == 0 {
		t.Error("nothing was acknowledged")
	}
}

// killed runs a writer in dir, kills it after the given number of acknowledged writes, and
// returns its output.
func killed(t *testing.T, dir string, writes int) map[string]bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWriter$")
	cmd.Env = append(os.Environ(), writerDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line, ok := strings.CutPrefix(lines.Text(), "wrote ")
		if !ok {
			continue
		}
		if strings.Count(line, " ") == 2 { // the last line may be incomplete
			said[line] = true
		}
		if len(said) == writes+1 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
		t.Fatalf("the writer ended by itself: %v", cmd.ProcessState)
	}
	return said
}
