package values

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/storage/value"

	"github.com/unforked/kcp/internal/storage/keys"
)

// A Transformer encrypts and decrypts the values of one resource, with any identity. It
// passes the tail of the key to the codec in a frame, and refuses to write an object at
// the key of another one. It implements [value.Transformer] for framed values.
type Transformer struct {
	encryption value.Transformer // at rest; nil for none
	// prefix of the keys in etcd. It is not part of the data that is authenticated along
	// with an encrypted value, so that data can be moved to another prefix.
	prefix string
	// lenient hides values that are corrupt or skipped: they become empty, which no codec decodes.
	lenient bool
}

// Lenient returns a transformer that returns an empty value for one that is corrupt, for reads
// in all clusters. It fails for a value that cannot be read now: a reader that missed the
// object would take it for deleted. See [WithSkip].
func (t Transformer) Lenient() Transformer {
	t.lenient = true
	return t
}

type skipKey struct{}

// WithSkip returns a context in which lenient transformers call skip for a value that cannot be
// read now, and return an empty value if it returns true.
func WithSkip(ctx context.Context, skip func(Path) bool) context.Context {
	return context.WithValue(ctx, skipKey{}, skip)
}

// hides reports whether the transformer returns an empty value instead of an error.
func (t Transformer) hides(ctx context.Context, p Path, err error) bool {
	if !t.lenient || IsCorrupt(err) {
		return t.lenient
	}
	skip, ok := ctx.Value(skipKey{}).(func(Path) bool)
	return ok && skip(p)
}

// Encrypts reports whether encryption is configured for the resource. It may be the
// identity, which stores plain values.
func (t Transformer) Encrypts() bool { return t.encryption != nil }

// A Path is the path of a key below the prefix. It is authenticated along with the value.
type Path string

// AuthenticatedData implements [value.Context].
func (p Path) AuthenticatedData() []byte { return []byte(p) } // a fresh copy each time: callers keep it

// split returns the path and the tail of the key that at names with the prefix.
func (t Transformer) split(at value.Context) (Path, string, error) {
	full := string(at.AuthenticatedData())
	below, ok := strings.CutPrefix(full, t.prefix)
	if ok {
		if _, tail, ok := keys.Split(below); ok {
			return Path(below), tail, nil
		}
	}
	return "", "", fmt.Errorf("malformed key %q", full)
}

// TransformFromStorage implements [value.Transformer]. It returns a framed value.
func (t Transformer) TransformFromStorage(ctx context.Context, data []byte, at value.Context) ([]byte, bool, error) {
	path, tail, err := t.split(at)
	if err != nil {
		return nil, false, err
	}
	data, stale, err := t.Open(ctx, data, path)
	if err != nil {
		if !t.hides(ctx, path, err) {
			return nil, false, err
		}
		data = nil
	}
	return AppendFrame(make([]byte, 0, len(data)+len(tail)+2), tail, data), stale, nil
}

// TransformToStorage implements [value.Transformer]. It takes a framed value.
func (t Transformer) TransformToStorage(ctx context.Context, framed []byte, at value.Context) ([]byte, error) {
	path, want, err := t.split(at)
	if err != nil {
		return nil, err
	}
	tail, data, err := CutFrame(framed)
	if err != nil {
		return nil, err
	}
	if tail != want {
		return nil, fmt.Errorf("refusing to write object %s at the key of %s", tail, want)
	}
	return t.Seal(ctx, data, path)
}

// Some encryption providers authenticate the key along with the value, others do not. The
// path is therefore encrypted together with the value, after a mark as long as a cipher
// block: with any provider, no value can be moved to another key.
const (
	sealMark      = "kcp.io/at-key/1:"
	encryptedMark = "k8s:enc:" // the libraries begin all encrypted values with it
)

// IsEncrypted reports whether a stored value is encrypted.
func IsEncrypted(stored []byte) bool { return bytes.HasPrefix(stored, []byte(encryptedMark)) }

// Seal returns the value to store at path for data, which has no frame.
func (t Transformer) Seal(ctx context.Context, data []byte, path Path) ([]byte, error) {
	if t.encryption == nil {
		return data, nil
	}
	plain := append(make([]byte, 0, len(sealMark)+len(path)+len(data)+2), sealMark...)
	stored, err := t.encryption.TransformToStorage(ctx, AppendFrame(plain, string(path), data), path)
	if err != nil || IsEncrypted(stored) {
		return stored, err
	}
	return t.encryption.TransformToStorage(ctx, data, path) // the provider does not encrypt
}

// Open is the inverse of [Transformer.Seal]. stale reports whether Seal would store the
// value in another way now: encrypted, or with another key. An error of decryption may
// pass; [IsCorrupt] tells which ones cannot. Data may share the memory of stored.
func (t Transformer) Open(ctx context.Context, stored []byte, path Path) (data []byte, stale bool, err error) {
	encrypted := IsEncrypted(stored)
	if t.encryption == nil {
		if encrypted {
			return nil, false, fmt.Errorf("the value at %s is encrypted; start the server with the --encryption-provider-config that it was written with", path)
		}
		return stored, false, nil
	}
	data, stale, err = t.encryption.TransformFromStorage(ctx, stored, path)
	if err != nil {
		return nil, false, fmt.Errorf("decrypt what is stored at %s: %w", path, err)
	}
	if !encrypted {
		return data, stale, nil
	}
	framed, ok := bytes.CutPrefix(data, []byte(sealMark))
	if !ok {
		return nil, false, corrupt(fmt.Errorf("the encrypted value at %s does not say where it belongs", path))
	}
	at, data, err := CutFrame(framed)
	if err != nil {
		return nil, false, corrupt(err)
	}
	if at != string(path) {
		return nil, false, corrupt(fmt.Errorf("the encrypted value at %s belongs elsewhere", path)) // the other key may be another tenant's
	}
	return data, stale, nil
}
