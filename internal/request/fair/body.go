package fair

import (
	"bytes"

	"github.com/unforked/kcp/internal/upstream/wire"
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

// Measure estimates the extent of an object in JSON, YAML or protobuf, in one pass over its
// bytes. In JSON it counts all members of objects and half of the items of lists. In YAML
// it counts at least as many.
func Measure(body []byte) Extent {
	e := Extent{Bytes: len(body)}
	switch text := bytes.TrimLeft(body, " \t\r\n"); {
	case bytes.HasPrefix(body, []byte(wire.Magic)):
		e.Members = countProtobuf(body[len(wire.Magic):], protobufDepth)
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
// Strings that parse as a message count as one, which is rare for long strings. The fields of the
// envelope and of the object count up to the first byte that is no part of one: a decoder makes
// objects of them before it fails.
func countProtobuf(message []byte, depth int) int {
	n := 0
	for len(message) > 0 {
		f, ok := wire.Next(message)
		if !ok {
			if depth >= protobufDepth-1 {
				return n
			}
			return 0 // a string
		}
		if f.Delimited {
			n++
			if depth > 0 {
				n += countProtobuf(f.Value, depth-1)
			}
		}
		message = message[f.Size:]
	}
	return n
}
