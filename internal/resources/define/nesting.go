package define

import (
	"encoding/binary"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxNesting is the maximal nesting of an object, the limit of JSON decoders. Schemas
// are recursive, and one level takes a few bytes of protobuf. Decoding without a limit
// could overflow the stack, which crashes the process.
const maxNesting = 10_000

// shallow is a serializer that refuses protobuf with more than maxNesting levels.
type shallow struct{ runtime.NegotiatedSerializer }

// SupportedMediaTypes implements [runtime.NegotiatedSerializer].
func (s shallow) SupportedMediaTypes() []runtime.SerializerInfo {
	all := s.NegotiatedSerializer.SupportedMediaTypes()
	out := make([]runtime.SerializerInfo, len(all))
	for i, info := range all {
		if info.MediaType == runtime.ContentTypeProtobuf {
			info.Serializer = shallowDecoder{info.Serializer}
			info.StrictSerializer = shallowDecoder{info.StrictSerializer}
		}
		out[i] = info
	}
	return out
}

type shallowDecoder struct{ runtime.Serializer }

// Decode implements [runtime.Decoder].
func (d shallowDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if nestedDeeper(data, maxNesting) {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("the object is nested deeper than %d levels", maxNesting))
	}
	return d.Serializer.Decode(data, defaults, into)
}

// protobufMagic is the prefix of every object in protobuf.
const protobufMagic = "k8s\x00"

// nestedDeeper reports whether a message is nested more than limit levels deep. It does
// not know the types of fields, so it treats every field as a message that could be one.
// It may overestimate the depth, but never underestimates it. Its time is linear in the
// size of data.
func nestedDeeper(data []byte, limit int) bool {
	data = data[min(len(data), len(protobufMagic)):]
	ends := []int{len(data)} // ends of the messages around at, outermost first
	for at := 0; ; {
		for at == ends[len(ends)-1] {
			if ends = ends[:len(ends)-1]; len(ends) == 0 {
				return false
			}
		}
		end := ends[len(ends)-1]
		size, inner, ok := nextField(data[at:end])
		if !ok { // not a message: continue after it
			at = end
			continue
		}
		at += size
		if inner > 0 {
			if ends = append(ends, at+inner); len(ends) > limit {
				return true
			}
		}
	}
}

// nextField reads the first field of a message. It returns the size of the field. If the
// field may be a message, size is the offset of that message and inner its length. The
// start and end tags of groups count as fields without a value.
func nextField(message []byte) (size, inner int, ok bool) {
	tag, size := varint(message)
	if size == 0 {
		return 0, 0, false
	}
	switch tag & 7 {
	case 0:
		_, n := varint(message[size:])
		return size + n, 0, n > 0
	case 1:
		size += 8
	case 2:
		length, n := varint(message[size:])
		if size += n; n == 0 || length > uint64(len(message)-size) {
			return 0, 0, false
		}
		return size, int(length), true
	case 3, 4:
	case 5:
		size += 4
	default:
		return 0, 0, false
	}
	return size, 0, size <= len(message)
}

// varint decodes a number and returns its size in bytes, 0 if it is invalid. Like the
// generated decoders, and unlike encoding/binary, it drops bits beyond 64.
func varint(b []byte) (v uint64, size int) {
	for i := 0; i < len(b) && i < binary.MaxVarintLen64; i++ {
		if v |= uint64(b[i]&0x7f) << (7 * i); b[i] < 0x80 {
			return v, i + 1
		}
	}
	return 0, 0
}
