package etcd

import (
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Events of a watch that does not want previous values get them, unless they are compacted.
func TestPrevious(t *testing.T) {
	client := opened(t, Config{}).Client
	ctx := t.Context()
	put, err := client.Put(ctx, "/elsewhere", "old")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, "/elsewhere", "new"); err != nil {
		t.Fatal(err)
	}
	last, err := client.Delete(ctx, "/elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	var events []*clientv3.Event
	for changes := client.Watch(ctx, "/elsewhere", clientv3.WithRev(put.Header.Revision)); len(events) < 3; {
		resp := <-changes
		if err := resp.Err(); err != nil {
			t.Fatal(err)
		}
		events = append(events, resp.Events...)
	}
	for i, want := range []string{"", "old", "new"} {
		e := *events[i]
		if err := Previous(ctx, client, &e); err != nil {
			t.Fatal(err)
		}
		var got string
		if e.PrevKv != nil {
			got = string(e.PrevKv.Value)
		}
		if got != want {
			t.Errorf("the previous value of event %d is %q, not %q", i, got, want)
		}
	}
	if _, err := client.Compact(ctx, last.Header.Revision); err != nil {
		t.Fatal(err)
	}
	if err := Previous(ctx, client, events[2]); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("the previous value is compacted, but the error is %v", err)
	}
}
