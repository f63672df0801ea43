package serve

import (
	"encoding/binary"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxNesting is how deep an object may be nested, as the decoders of JSON have it. A
// schema is nested in itself as deep as whoever writes it likes, and in protobuf that
// takes a few bytes for each level: decoding it would take more stack than a program may
// have, which ends the program.
const maxNesting = 10_000

// shallow is a serializer that refuses what is nested deeper in protobuf than it could
// be in JSON.
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

// protobufMagic is what every object in protobuf begins with.
const protobufMagic = "k8s\x00"

// nestedDeeper reports whether a message has others in it more than limit levels deep.
// It does not know which of its fields are messages and takes for one whatever could
// be, so that what it reports can be too much, but never too little. It looks at each
// byte a few times at most.
func nestedDeeper(data []byte, limit int) bool {
	data = data[min(len(data), len(protobufMagic)):]
	ends := []int{len(data)} // of the messages that at is in
	for at := 0; ; {
		for at == ends[len(ends)-1] {
			if ends = ends[:len(ends)-1]; len(ends) == 0 {
				return false
			}
		}
		end := ends[len(ends)-1]
		size, inner, ok := nextField(data[at:end])
		if !ok { // it is no message: go on behind it
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

// nextField reads the field that a message begins with: its size or, if it may be a
// message itself, where that begins and how long it is. Groups are skipped by their
// marks, which are fields without a value.
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

// varint reads a number, and how many bytes it has, 0 if there is none. Like the decoders
// that are generated, and unlike encoding/binary, it drops what is beyond 64 bits.
func varint(b []byte) (v uint64, size int) {
	for i := 0; i < len(b) && i < binary.MaxVarintLen64; i++ {
		if v |= uint64(b[i]&0x7f) << (7 * i); b[i] < 0x80 {
			return v, i + 1
		}
	}
	return 0, 0
}
