package fair

import (
	"bytes"
	"encoding/binary"
)

// An Extent is the size of an encoded object. Members are the entries of its maps and
// lists. They determine the cost of managed fields, which may name each of them.
type Extent struct {
	Bytes   int
	Members int
}

// Memory estimates the bytes of the decoded object, including the copies that a write
// makes of it.
func (e Extent) Memory() int64 { return 4*int64(e.Bytes) + 300*int64(e.Members) }

// protobufMagic begins objects in Kubernetes' protobuf envelope.
var protobufMagic = []byte("k8s\x00")

// Measure estimates the extent of an object in JSON, YAML or protobuf, in one pass over its
// bytes. In JSON it counts all members of objects and half of the items of lists. In YAML
// it counts at least as many.
func Measure(body []byte) Extent {
	e := Extent{Bytes: len(body)}
	switch text := bytes.TrimLeft(body, " \t\r\n"); {
	case bytes.HasPrefix(body, protobufMagic):
		e.Members = countProtobuf(body[len(protobufMagic):], protobufDepth)
	case len(text) > 0 && (text[0] == '{' || text[0] == '['):
		e.Members = countJSON(text)
	default:
		e.Members = countYAML(text)
	}
	return e
}

// countJSON counts the members of objects and the items of arrays.
func countJSON(text []byte) int {
	members := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case ':', ',': // n members have n colons and n-1 commas, n items n-1 commas
			members++
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		}
	}
	return members/2 + 1
}

// countYAML counts the lines of block style and the commas of flow style. Each line of a
// string counts.
func countYAML(text []byte) int {
	return bytes.Count(text, []byte("\n")) + bytes.Count(text, []byte(",")) + 1
}

// protobufDepth is the depth below the envelope to which fields are counted: the object,
// its maps and lists, and their entries.
const protobufDepth = 4

// countProtobuf counts the length-delimited fields of a message and of the messages in it.
// Strings that parse as a message count as one, which is rare for long strings.
func countProtobuf(message []byte, depth int) int {
	n := 0
	for len(message) > 0 {
		tag, size := binary.Uvarint(message)
		if size <= 0 || tag>>3 == 0 {
			return 0 // not a message
		}
		message = message[size:]
		switch tag & 7 {
		case 0:
			if _, size = binary.Uvarint(message); size <= 0 {
				return 0
			}
		case 1:
			size = 8
		case 5:
			size = 4
		case 2:
			length, prefix := binary.Uvarint(message)
			if prefix <= 0 || length > uint64(len(message)-prefix) {
				return 0
			}
			size = prefix + int(length)
			n++
			if depth > 0 && length > 0 {
				n += countProtobuf(message[prefix:size], depth-1)
			}
		default:
			return 0
		}
		if size > len(message) {
			return 0
		}
		message = message[size:]
	}
	return n
}
