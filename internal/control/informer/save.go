package informer

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/unforked/kcp/internal/control"
)

// A Saver sends a JSON merge patch for the object at key to a subresource, or to the
// object itself if subresource is empty. It returns the new resource version. If the
// resource has no status subresource, the Saver sends the patch for "status" to the
// object itself.
type Saver func(ctx context.Context, key control.Key, patch []byte, subresource string) (resourceVersion string, err error)

const status = "status"

// Save writes the difference between old, an object of the cache, and next, a changed
// copy of it. Without a difference it writes nothing. It fails with a conflict if the
// object has changed since or was recreated. The cache then catches up and wakes the loop.
//
// Save writes the status and the other fields with separate requests. The status comes
// last, except if next drops a finalizer: the object may not exist after that.
func (k *Kind[T]) Save(ctx context.Context, old, next T) error {
	if reflect.DeepEqual(old, next) {
		return nil
	}
	key := control.KeyOf(old)
	if err := k.save(ctx, key, old, next); err != nil {
		return fmt.Errorf("save %s %s: %w", k.config.Name, key, err)
	}
	return nil
}

func (k *Kind[T]) save(ctx context.Context, key control.Key, old, next T) error {
	if other := control.KeyOf(next); other != key {
		return fmt.Errorf("its key changed to %s; save the object that was read", other)
	}
	if old.GetUID() != next.GetUID() {
		return fmt.Errorf("its UID changed from %q to %q; save the object that was read", old.GetUID(), next.GetUID())
	}
	patches, err := difference(old, next)
	if err != nil || len(patches) == 0 {
		return err
	}
	if k.config.Saver == nil {
		return errors.New("this cache is read-only; create it with a Saver")
	}
	version := old.GetResourceVersion()
	for _, p := range patches {
		body, err := p.against(version, string(old.GetUID()))
		if err != nil {
			return err
		}
		if version, err = k.config.Saver(ctx, key, body, p.subresource); err != nil {
			return err
		}
	}
	return nil
}

// A patch is a JSON merge patch for an object or a subresource of it.
type patch struct {
	subresource string
	fields      map[string]any
}

// difference returns the patches that turn old into next, in order.
func difference(old, next metav1.Object) ([]patch, error) {
	before, err := fields(old)
	if err != nil {
		return nil, err
	}
	after, err := fields(next)
	if err != nil {
		return nil, err
	}
	rest := mergePatch(before, after)
	var patches []patch
	if changed, ok := rest[status]; ok {
		patches = append(patches, patch{status, map[string]any{status: changed}})
		delete(rest, status)
	}
	if len(rest) > 0 {
		patches = append(patches, patch{"", rest})
	}
	dropsFinalizer := slices.ContainsFunc(old.GetFinalizers(), func(f string) bool {
		return !slices.Contains(next.GetFinalizers(), f)
	})
	if !dropsFinalizer {
		slices.Reverse(patches)
	}
	return patches, nil
}

// fields returns o as JSON fields without the resource version, which is a condition
// of a patch and not a change.
func fields(o any) (map[string]any, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	if meta, ok := m["metadata"].(map[string]any); ok {
		delete(meta, "resourceVersion")
	}
	return m, nil
}

// against returns the patch with the resource version and UID as conditions, each only
// if it is not empty.
func (p patch) against(resourceVersion, uid string) ([]byte, error) {
	meta, ok := p.fields["metadata"].(map[string]any)
	if !ok {
		meta = map[string]any{}
	}
	if resourceVersion != "" {
		meta["resourceVersion"] = resourceVersion
	}
	if uid != "" {
		meta["uid"] = uid
	}
	if len(meta) > 0 {
		p.fields["metadata"] = meta
	}
	return json.Marshal(p.fields)
}

// mergePatch returns the JSON merge patch (RFC 7396) that turns old into next.
// A null field counts as absent, because a merge patch cannot express it.
func mergePatch(old, next map[string]any) map[string]any {
	patch := map[string]any{}
	for name, n := range next {
		o := old[name]
		oldFields, wasObject := o.(map[string]any)
		nextFields, isObject := n.(map[string]any)
		if wasObject && isObject {
			if inner := mergePatch(oldFields, nextFields); len(inner) > 0 {
				patch[name] = inner
			}
		} else if !reflect.DeepEqual(o, n) {
			patch[name] = n
		}
	}
	for name, o := range old {
		if _, kept := next[name]; !kept && o != nil {
			patch[name] = nil
		}
	}
	return patch
}
