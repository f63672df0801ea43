package define

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/upstream/wire"
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

// nestedDeeper reports whether a message is nested more than limit levels deep. It does
// not know the types of fields, so it treats every field as a message that could be one.
// It may overestimate the depth, but never underestimates it. Its time is linear in the
// size of data.
func nestedDeeper(data []byte, limit int) bool {
	data = data[min(len(data), len(wire.Magic)):]
	ends := []int{len(data)} // ends of the messages around at, outermost first
	for at := 0; ; {
		for at == ends[len(ends)-1] {
			if ends = ends[:len(ends)-1]; len(ends) == 0 {
				return false
			}
		}
		end := ends[len(ends)-1]
		f, ok := wire.Next(data[at:end])
		if !ok { // not a message: continue after it
			at = end
			continue
		}
		at += f.Size - len(f.Value)
		if inner := len(f.Value); inner > 0 {
			if ends = append(ends, at+inner); len(ends) > limit {
				return true
			}
		}
	}
}
