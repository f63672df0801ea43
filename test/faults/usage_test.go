package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/test/child"
)

// usageInterval is how often servers write the requests that they have counted.
const usageInterval = time.Minute

// A server that is stopped has written all requests that it counted. One that is killed loses those of
// the last interval at most, and none counts twice.
func TestCountersAfterAKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var k *child.KCP
	var api *child.Client
	start := func() {
		t.Helper()
		var err error
		if k, err = child.Start(t.Context(), kcp(t), dir); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(k.Stop)
		if api, err = child.NewClient(k.Admin); err != nil {
			t.Fatal(err)
		}
	}
	reads := func(n int) {
		t.Helper()
		for range n {
			if _, err := api.Call(t.Context(), http.MethodGet, "/clusters/root"+namespaces+"/default/secrets", child.JSON, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	between := func(least, most int64) {
		t.Helper()
		b, err := api.Call(t.Context(), http.MethodGet, "/clusters/root/apis/core.kcp.io/v1alpha1/logicalclusters/cluster/usage", child.JSON, nil)
		if err != nil {
			t.Fatal(err)
		}
		var u core.LogicalClusterUsage
		if err := json.Unmarshal(b, &u); err != nil {
			t.Fatal(err)
		}
		var got int64
		for _, r := range u.Resources {
			if r.Group == "" && r.Resource == "secrets" {
				got = r.Requests["list"]
			}
		}
		if got < least || got > most {
			t.Errorf("%d lists are counted, want %d to %d", got, least, most)
		}
	}
	start()
	reads(70)
	between(0, 70)
	k.Stop()
	start()
	between(70, 70)
	reads(30)
	written := int64(70)
	if long() {
		if err := child.Pause(t.Context(), usageInterval+5*time.Second); err != nil {
			t.Fatal(err)
		}
		written = 100
	}
	reads(5)
	between(written, 105)
	if err := syscall.Kill(k.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(fmt.Errorf("kill: %w", err))
	}
	<-k.Done()
	start()
	between(written, 105)
	reads(10)
	k.Stop()
	start()
	between(written+10, 115)
}
