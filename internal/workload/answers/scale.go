package answers

import "errors"

// A Density is what the parts of JSON weigh, besides its bytes: in memory, a short text may take much. An empty pod has
// two bytes in JSON. Without the weights, a short answer could fill the memory of the server.
type Density struct {
	// Byte, Element, Member and Object are the weights of a byte, of an item of a list, of a member of an object, and
	// of an object.
	Byte, Element, Member, Object int64
}

// Typed is the density of objects that are decoded to structs, such as pods: an empty one takes more than a thousand
// bytes, and twice as many while its list grows. An empty label takes a hundred.
func Typed() Density { return Density{Byte: 1, Element: 2 << 10, Member: 128} }

// Untyped is the density of objects that are decoded to maps. The decoder has up to four copies of the text at a time.
func Untyped() Density { return Density{Byte: 4, Element: 64, Member: 128, Object: 448} }

// maxDepth is the maximum of levels in an answer in JSON. Pods have about ten.
const maxDepth = 100

var errTooDeep = errors.New("the answer has too many levels")

// A scale weighs JSON while it is read. It does not check the syntax: what it takes for JSON weighs at
// least as much as what a decoder takes for it.
type scale struct {
	as      Density
	lists   []bool // whether each open level is a list
	quoted  bool   // in a string
	escaped bool   // after a backslash
	values  int    // that ended at the top level
}

// weigh returns the weight of the next bytes.
func (s *scale) weigh(text []byte) (weight int64, err error) {
	weight = int64(len(text)) * s.as.Byte
	for _, b := range text {
		if s.quoted {
			switch {
			case s.escaped:
				s.escaped = false
			case b == '\\':
				s.escaped = true
			case b == '"':
				s.quoted = false
			}
			continue
		}
		switch b {
		case '"':
			s.quoted = true
		case '[', '{':
			if len(s.lists) == maxDepth {
				return weight, errTooDeep
			}
			if s.lists = append(s.lists, b == '['); b == '[' {
				weight += s.as.Element
			} else {
				weight += s.as.Object
			}
		case ':':
			weight += s.as.Member
		case ',':
			if n := len(s.lists); n > 0 && s.lists[n-1] {
				weight += s.as.Element
			}
		case ']', '}':
			if n := len(s.lists); n > 0 {
				s.lists = s.lists[:n-1]
			}
			if len(s.lists) == 0 {
				s.values++
			}
		}
	}
	return weight, nil
}
