package pods

import "errors"

// elementWeight is what an item of a list in JSON weighs besides its bytes. In memory, an empty container takes
// hundreds of bytes, and in JSON two: without the weight, a short answer could fill the memory of the server.
const elementWeight = 512

// maxDepth is the maximum of levels in an answer in JSON. Pods have about ten.
const maxDepth = 100

var errTooDeep = errors.New("the answer has too many levels")

// A scale weighs JSON while it is read. It does not check the syntax: what it takes for JSON weighs at
// least as much as what a decoder takes for it.
type scale struct {
	lists   []bool // whether each open level is a list
	quoted  bool   // in a string
	escaped bool   // after a backslash
	values  int    // that ended at the top level
}

// weigh returns the weight of the next bytes.
func (s *scale) weigh(text []byte) (weight int64, err error) {
	weight = int64(len(text))
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
				weight += elementWeight
			}
		case ',':
			if n := len(s.lists); n > 0 && s.lists[n-1] {
				weight += elementWeight
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
