package values

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/upstream/wire"
)

// Metadata is the part of an object that deletion and garbage collection depend on. It is
// read from the stored value without decoding the rest.
type Metadata struct {
	UID types.UID
	// Deleting is true if the object has a deletion timestamp.
	Deleting   bool
	Finalizers []string
	Owners     []metav1.OwnerReference
}

// Metadata returns the metadata of the object that is stored as value at key.
func (k *Kinds) Metadata(ctx context.Context, key keys.Key, value []byte) (Metadata, error) {
	value, err := k.Decrypt(ctx, key, value)
	if err != nil {
		return Metadata{}, err
	}
	m, err := readMetadata(value)
	if err != nil {
		return Metadata{}, corrupt(fmt.Errorf("metadata of %s: %w", key, err))
	}
	return m, nil
}

// APIVersion returns the group and version in which the object is stored as value at key.
func (k *Kinds) APIVersion(ctx context.Context, key keys.Key, value []byte) (schema.GroupVersion, error) {
	value, err := k.Decrypt(ctx, key, value)
	if err != nil {
		return schema.GroupVersion{}, err
	}
	var kind runtime.TypeMeta
	if envelope, ok := bytes.CutPrefix(value, []byte(wire.Magic)); ok {
		var u runtime.Unknown
		err = u.Unmarshal(envelope)
		kind = u.TypeMeta
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(value, &kind)
	}
	if err != nil {
		return schema.GroupVersion{}, corrupt(fmt.Errorf("version of %s: %w", key, err))
	}
	return schema.ParseGroupVersion(kind.APIVersion)
}

// readMetadata reads the metadata of an encoded object, in protobuf or JSON.
func readMetadata(value []byte) (Metadata, error) {
	if envelope, ok := bytes.CutPrefix(value, []byte(wire.Magic)); ok {
		return protobufMetadata(envelope)
	}
	return jsonMetadata(value)
}

// Numbers of fields, which are part of the API of Kubernetes. Every kind has its metadata
// in the same field.
const (
	unknownRaw         = 2
	objectMetadata     = 1
	metadataUID        = 5
	metadataDeleted    = 9
	metadataOwners     = 13
	metadataFinalizers = 14
)

func protobufMetadata(envelope []byte) (Metadata, error) {
	var m Metadata
	err := eachField(envelope, unknownRaw, func(_ uint64, object []byte) error {
		return eachField(object, objectMetadata, func(_ uint64, metadata []byte) error {
			return eachField(metadata, 0, m.field)
		})
	})
	return m, err
}

// field sets m from a protobuf field of an ObjectMeta.
func (m *Metadata) field(number uint64, value []byte) error {
	switch number {
	case metadataUID:
		m.UID = types.UID(value)
	case metadataDeleted:
		m.Deleting = true
	case metadataFinalizers:
		m.Finalizers = append(m.Finalizers, string(value))
	case metadataOwners:
		var owner metav1.OwnerReference
		if err := owner.Unmarshal(value); err != nil {
			return err
		}
		m.Owners = append(m.Owners, owner)
	}
	return nil
}

var errTruncated = errors.New("truncated protobuf message")

// eachField calls f with the fields of a message that hold bytes: with the fields of the
// number only, or with all of them if only is 0.
func eachField(message []byte, only uint64, f func(number uint64, value []byte) error) error {
	for len(message) > 0 {
		field, ok := wire.Next(message)
		if !ok {
			return errTruncated
		}
		if field.Delimited && (only == 0 || only == field.Number) {
			if err := f(field.Number, field.Value); err != nil {
				return err
			}
		}
		message = message[field.Size:]
	}
	return nil
}

// jsonMetadata reads the metadata and stops there. The keys of stored JSON are sorted, so
// that most of an object comes after its metadata.
func jsonMetadata(value []byte) (Metadata, error) {
	var m Metadata
	err := eachMember(value, func(key, metadata []byte) error {
		if string(key) != `"metadata"` {
			return nil
		}
		if err := eachMember(metadata, m.member); err != nil {
			return err
		}
		return errDone
	})
	if errors.Is(err, errDone) {
		err = nil
	}
	return m, err
}

// member sets m from a member of the metadata in JSON. Unlike encoding/json it is case
// sensitive, as the decoder of the objects is.
func (m *Metadata) member(key, value []byte) error {
	switch string(key) {
	case `"uid"`:
		if value[0] == '"' && bytes.IndexByte(value, '\\') < 0 {
			m.UID = types.UID(value[1 : len(value)-1])
			return nil
		}
		return kjson.UnmarshalCaseSensitivePreserveInts(value, &m.UID)
	case `"deletionTimestamp"`:
		m.Deleting = string(value) != "null"
	case `"finalizers"`:
		return kjson.UnmarshalCaseSensitivePreserveInts(value, &m.Finalizers)
	case `"ownerReferences"`:
		return kjson.UnmarshalCaseSensitivePreserveInts(value, &m.Owners)
	}
	return nil
}

var (
	errNotJSON = errors.New("not a JSON object")
	errDone    = errors.New("done")
)

// eachMember calls f with the keys of a JSON object, in quotes, and their values. It does
// not check that the values are well-formed.
func eachMember(object []byte, f func(key, value []byte) error) error {
	rest, ok := cutByte(object, '{')
	if !ok {
		return errNotJSON
	}
	if _, empty := cutByte(rest, '}'); empty {
		return nil
	}
	for {
		rest = skipSpace(rest)
		n := stringLength(rest)
		if n == 0 {
			return errNotJSON
		}
		key := rest[:n]
		if rest, ok = cutByte(rest[n:], ':'); !ok {
			return errNotJSON
		}
		rest = skipSpace(rest)
		if n = valueLength(rest); n == 0 {
			return errNotJSON
		}
		if err := f(key, rest[:n]); err != nil {
			return err
		}
		if rest, ok = cutByte(rest[n:], ','); !ok {
			if _, ok = cutByte(rest, '}'); ok {
				return nil
			}
			return errNotJSON
		}
	}
}

func skipSpace(b []byte) []byte { return bytes.TrimLeft(b, " \t\r\n") }

// cutByte returns the rest of b after c, and whether c is the first byte after spaces.
func cutByte(b []byte, c byte) ([]byte, bool) {
	rest := skipSpace(b)
	if len(rest) == 0 || rest[0] != c {
		return b, false
	}
	return rest[1:], true
}

// stringLength returns the length of the JSON string at the start of b, 0 for none.
func stringLength(b []byte) int {
	if len(b) == 0 || b[0] != '"' {
		return 0
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}

// valueLength returns the length of the JSON value at the start of b, 0 for none.
func valueLength(b []byte) int {
	depth := 0
	for i := 0; i < len(b); {
		switch b[i] {
		case '"':
			n := stringLength(b[i:])
			if n == 0 || depth == 0 {
				return n
			}
			i += n
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return 0
}
