package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/unforked/kcp/internal/cluster"
)

// Metadata is the part of an object that says what it depends on. It is read from
// the stored value without decoding the rest.
type Metadata struct {
	UID types.UID
	// Deleting is true once deletion began.
	Deleting   bool
	Finalizers []string
	Owners     []metav1.OwnerReference
}

// Metadata returns that of the object as it is after the event, or as it last was
// if it is gone.
func (e Event) Metadata(ctx context.Context) (Metadata, error) {
	value := e.value
	if e.Deleted() {
		value = e.previous
	}
	return e.store.metadata(ctx, e.Key, value)
}

// Metadata returns that of an object as it is now and its revision, which is 0 if
// there is none.
func (s *Store) Metadata(ctx context.Context, k Key) (Metadata, int64, error) {
	if k.check() != nil {
		return Metadata{}, 0, nil // no object is stored at what is no key
	}
	resp, err := s.backend.client.Get(ctx, s.prefix+k.full())
	if err != nil {
		return Metadata{}, 0, err
	}
	s.guard.saw(resp.Header.Revision)
	if len(resp.Kvs) == 0 {
		return Metadata{}, 0, nil
	}
	m, err := s.metadata(ctx, k, resp.Kvs[0].Value)
	return m, resp.Kvs[0].ModRevision, err
}

// Namesakes returns the keys of the objects of one name in all namespaces of a
// cluster. It reads the keys of all objects that the cluster has of the resource.
func (s *Store) Namesakes(ctx context.Context, r Resource, c cluster.Name, name string) ([]Key, error) {
	start := s.prefix + r.prefix() + "/" + string(c) + "/"
	end := clientv3.GetPrefixRangeEnd(start)
	var found []Key
	for {
		resp, err := s.backend.client.Get(ctx, start, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(scanPage))
		if err != nil {
			return nil, err
		}
		for _, kv := range resp.Kvs {
			if k, ok := parseKey(strings.TrimPrefix(string(kv.Key), s.prefix)); ok && k.Name == name {
				found = append(found, k)
			}
		}
		if !resp.More {
			return found, nil
		}
		start = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

func (s *Store) metadata(ctx context.Context, k Key, value []byte) (Metadata, error) {
	value, err := s.decrypted(ctx, k, value)
	if err != nil {
		return Metadata{}, err
	}
	m, err := readMetadata(value)
	if err != nil {
		return Metadata{}, fmt.Errorf("metadata of %s: %w", k, err)
	}
	return m, nil
}

// decrypted returns a value as the codec of its resource wrote it, without copying
// it if that is how it is stored.
func (s *Store) decrypted(ctx context.Context, k Key, value []byte) ([]byte, error) {
	if k.Root == System {
		return value, nil
	}
	value, _, err := s.keyed(k.GroupResource()).open(ctx, value, belowPrefix(k.full()))
	return value, err
}

// readMetadata reads a value in either of the forms in which objects are stored.
func readMetadata(value []byte) (Metadata, error) {
	if envelope, ok := bytes.CutPrefix(value, protobufMagic); ok {
		return protobufMetadata(envelope)
	}
	return jsonMetadata(value)
}

// protobufMagic begins values in Kubernetes' protobuf form. A runtime.Unknown
// follows, whose raw bytes are the object.
var protobufMagic = []byte("k8s\x00")

// Fields of the messages below, which are part of the API of Kubernetes. Every
// kind has its metadata in the same field.
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

// field takes in a field of an ObjectMeta.
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

// eachField calls f with the fields of a message that hold bytes: those of one
// number, or all of them if that is 0.
func eachField(message []byte, only uint64, f func(number uint64, value []byte) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return errTruncated
		}
		message = message[n:]
		size := uint64(0) // of the value
		switch tag & 7 {
		case 0:
			_, n := binary.Uvarint(message)
			if n <= 0 {
				return errTruncated
			}
			size = uint64(n)
		case 1:
			size = 8
		case 5:
			size = 4
		case 2:
			length, n := binary.Uvarint(message)
			if n <= 0 {
				return errTruncated
			}
			message, size = message[n:], length
		default:
			return fmt.Errorf("protobuf field of unknown type %d", tag&7)
		}
		if size > uint64(len(message)) {
			return errTruncated
		}
		if number := tag >> 3; tag&7 == 2 && (only == 0 || only == number) {
			if err := f(number, message[:size]); err != nil {
				return err
			}
		}
		message = message[size:]
	}
	return nil
}

// jsonMetadata reads the metadata alone, which stands before most of an object: the
// keys of stored JSON are sorted.
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

// member takes in a member of the metadata in JSON. Unlike encoding/json it tells
// "uid" from "UID", as the decoder of the objects does.
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
	errDone    = errors.New("found what was looked for")
)

// eachMember calls f with the keys of a JSON object, as they are written, and their
// values. What it gives is well-formed only if the object is.
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

// cutByte returns what follows c, if b begins with that but for space.
func cutByte(b []byte, c byte) ([]byte, bool) {
	rest := skipSpace(b)
	if len(rest) == 0 || rest[0] != c {
		return b, false
	}
	return rest[1:], true
}

// stringLength returns how long the JSON string is that b begins with, 0 for none.
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

// valueLength returns how long the JSON value is that b begins with, 0 for none.
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
