package pods

import "errors"

// elementWeight is what an item of a list in JSON weighs besides its bytes, and memberWeight a member of an object.
// In memory, an empty pod takes more than a thousand bytes, and twice as many while its list grows; in JSON, it has two.
// An empty label takes a hundred, and six in JSON. Without the weights, a short answer could fill the memory of the server.
const elementWeight, memberWeight = 2 << 10, 128

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
		case ':':
			weight += memberWeight
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
