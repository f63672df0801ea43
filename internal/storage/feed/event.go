package feed

import (
	"context"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

// An Event is a change of one key.
type Event struct {
	Key      keys.Key
	Revision int64
	// Value and Previous are the stored values after and before the change. Value is nil
	// after a deletion, Previous before a creation. They are shared: do not change them.
	Value    []byte
	Previous []byte
	// Shared is the result of the function of [Feed.Share] for an event of a custom resource that
	// subscriptions get, else nil.
	Shared any

	kinds *values.Kinds
	again *bool // set if the value cannot be read now; may be nil
}

// Event returns a change in etcd as an event. It reports false if the key is not that of
// an object.
func (f *Feed) Event(e *clientv3.Event) (Event, bool) {
	k, ok := f.key(e.Kv.Key)
	if !ok {
		return Event{}, false
	}
	ev := Event{Key: k, Revision: e.Kv.ModRevision, kinds: f.kinds}
	if e.Type != clientv3.EventTypeDelete {
		ev.Value = present(e.Kv.Value)
	}
	if e.PrevKv != nil {
		ev.Previous = present(e.PrevKv.Value)
	}
	return ev, true
}

// key parses a key of etcd.
func (f *Feed) key(full []byte) (keys.Key, bool) {
	return keys.Parse(strings.TrimPrefix(string(full), f.prefix))
}

// present returns value, or an empty slice instead of nil: no server writes an empty
// value, but one is not a deletion.
func present(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}

// Deleted reports whether the event is a deletion.
func (e Event) Deleted() bool { return e.Value == nil }

// Object decodes the object after the event, in its storage version.
func (e Event) Object(ctx context.Context) (runtime.Object, error) {
	o, err := e.kinds.Decode(ctx, e.Key, e.Value)
	return o, e.noted(err)
}

// Unmarshal decodes the object after the event, which is stored as JSON, into o.
func (e Event) Unmarshal(ctx context.Context, o any) error {
	return e.noted(e.kinds.Unmarshal(ctx, e.Key, e.Value, o))
}

// Metadata returns the metadata of the object after the event, or before it if the event
// is a deletion.
func (e Event) Metadata(ctx context.Context) (values.Metadata, error) {
	value := e.Value
	if e.Deleted() {
		value = e.Previous
	}
	m, err := e.kinds.Metadata(ctx, e.Key, value)
	return m, e.noted(err)
}

// noted makes the feed deliver the event again if its value cannot be read now.
func (e Event) noted(err error) error {
	if err != nil && !values.IsCorrupt(err) && e.again != nil {
		*e.again = true
	}
	return err
}
