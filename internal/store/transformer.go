package store

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/storage/value"
)

// keyed passes the key of a value to the codec and checks that the codec's
// object belongs at it. See [appendFrame].
type keyed struct {
	inner value.Transformer // encryption at rest; nil for none
	// prefix of etcd keys; what is authenticated along with an encrypted value
	// leaves it out, so that data may be moved to another prefix.
	prefix string
	// lenient hides failures of inner, leaving a value that no codec decodes:
	// for reads that feed a cache.
	lenient bool
}

type belowPrefix string

func (k belowPrefix) AuthenticatedData() []byte { return []byte(k) } // a fresh copy each time: callers keep it

func (t keyed) split(at value.Context) (belowPrefix, string, error) {
	full := string(at.AuthenticatedData())
	below, ok := strings.CutPrefix(full, t.prefix)
	if ok {
		if _, tail, ok := cutHead(below); ok {
			return belowPrefix(below), tail, nil
		}
	}
	return "", "", fmt.Errorf("malformed key %q", full)
}

func (t keyed) TransformFromStorage(ctx context.Context, data []byte, at value.Context) ([]byte, bool, error) {
	key, tail, err := t.split(at)
	if err != nil {
		return nil, false, err
	}
	stale := false
	if t.inner != nil {
		if data, stale, err = t.inner.TransformFromStorage(ctx, data, key); err != nil {
			if !t.lenient {
				return nil, false, err
			}
			data = nil
		}
	}
	return appendFrame(make([]byte, 0, len(data)+len(tail)+2), tail, data), stale, nil
}

func (t keyed) TransformToStorage(ctx context.Context, framed []byte, at value.Context) ([]byte, error) {
	key, want, err := t.split(at)
	if err != nil {
		return nil, err
	}
	tail, data, err := cutFrame(framed)
	if err != nil {
		return nil, err
	}
	if tail != want {
		return nil, fmt.Errorf("refusing to write object %s at the key of %s", tail, want)
	}
	if t.inner == nil {
		return data, nil
	}
	return t.inner.TransformToStorage(ctx, data, key)
}
