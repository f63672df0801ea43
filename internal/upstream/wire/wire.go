// Package wire reads messages of protobuf field by field, as the decoders read them that Kubernetes
// generates for its kinds. These accept more than the library of protobuf does: numbers of more than 64
// bits, whose highest bits they drop, and groups, which they skip. Whatever looks at a message before it
// is decoded must not stop where they go on.
//
// At the next minor version: see the method Unmarshal and the function skipGenerated of a kind in
// k8s.io/api/core/v1.
package wire

import "encoding/binary"

// Magic begins an object in Kubernetes' protobuf envelope, a runtime.Unknown.
const Magic = "k8s\x00"

// A Field is the first field of a message.
type Field struct {
	Number uint64
	// Size is that of the whole field, in bytes.
	Size int
	// Delimited reports whether the field has a length, and so may be a message or a text.
	Delimited bool
	// Value is that of a delimited field. It ends where the field does.
	Value []byte
}

// Next reads the first field of a message. It returns false if there is no whole field. The start and end
// of a group count as fields without a value, so that fields in a group are read like others.
func Next(message []byte) (f Field, ok bool) {
	tag, size := varint(message)
	if size == 0 {
		return Field{}, false
	}
	f = Field{Number: tag >> 3, Size: size}
	switch tag & 7 {
	case 0:
		_, n := varint(message[size:])
		f.Size += n
		return f, n > 0
	case 1:
		f.Size += 8
	case 2:
		length, n := varint(message[size:])
		size += n
		if n == 0 || length > uint64(len(message)-size) {
			return Field{}, false
		}
		f.Delimited, f.Size = true, size+int(length)
		f.Value = message[size:f.Size]
	case 3, 4:
	case 5:
		f.Size += 4
	default:
		return Field{}, false
	}
	return f, f.Size <= len(message)
}

// varint decodes a number and returns its size in bytes, 0 if it is invalid. It drops bits beyond 64.
func varint(b []byte) (v uint64, size int) {
	for i := 0; i < len(b) && i < binary.MaxVarintLen64; i++ {
		if v |= uint64(b[i]&0x7f) << (7 * i); b[i] < 0x80 {
			return v, i + 1
		}
	}
	return 0, 0
}
