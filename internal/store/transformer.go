package store

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
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

// keyed returns how values of a resource are stored, of whichever identity.
func (s *Store) keyed(gr schema.GroupResource) keyed {
	k := keyed{prefix: s.prefix}
	if s.encryption != nil {
		k.inner = s.encryption.TransformerForResource(gr)
	}
	return k
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
	data, stale, err := t.open(ctx, data, key)
	if err != nil {
		if !t.lenient {
			return nil, false, err
		}
		data = nil
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
	return t.seal(ctx, data, key)
}

// Some ways to encrypt authenticate the key along with the value, others do not, or
// authenticate nothing. So that no value can be moved to another key, whichever is
// in use, the key is encrypted with the value, behind a mark as long as a block.
const (
	sealMark      = "kcp.io/at-key/1:"
	encryptedMark = "k8s:enc:" // begins all that the libraries encrypt
)

func isEncrypted(stored []byte) bool { return bytes.HasPrefix(stored, []byte(encryptedMark)) }

// seal returns data as it is stored at key.
func (t keyed) seal(ctx context.Context, data []byte, key belowPrefix) ([]byte, error) {
	if t.inner == nil {
		return data, nil
	}
	plain := append(make([]byte, 0, len(sealMark)+len(key)+len(data)+2), sealMark...)
	stored, err := t.inner.TransformToStorage(ctx, appendFrame(plain, string(key), data), key)
	if err != nil || isEncrypted(stored) {
		return stored, err
	}
	return t.inner.TransformToStorage(ctx, data, key) // stored as it is
}

// open is the inverse of seal. It reports whether the value would be stored in
// another way now: not encrypted, or with another key.
func (t keyed) open(ctx context.Context, stored []byte, key belowPrefix) (data []byte, stale bool, err error) {
	encrypted := isEncrypted(stored)
	if t.inner == nil {
		if encrypted {
			return nil, false, fmt.Errorf("the value at %s is encrypted; start the server with the --encryption-provider-config that it was written with", key)
		}
		return stored, false, nil
	}
	data, stale, err = t.inner.TransformFromStorage(ctx, stored, key)
	if err != nil {
		return nil, false, fmt.Errorf("decrypt what is stored at %s: %w", key, err)
	}
	if !encrypted {
		return data, stale, nil
	}
	framed, ok := bytes.CutPrefix(data, []byte(sealMark))
	if !ok {
		return nil, false, fmt.Errorf("the encrypted value at %s does not say where it belongs", key)
	}
	at, data, err := cutFrame(framed)
	if err != nil {
		return nil, false, err
	}
	if at != string(key) {
		return nil, false, fmt.Errorf("the encrypted value at %s belongs elsewhere", key) // not saying where, which may be another tenant's
	}
	return data, stale, nil
}
