package upstream

import (
	"strconv"
	"unsafe" // also for go:linkname
)

// maxExponent limits the exponents of quantities, as in 1e9. The library computes ten to the power of an exponent
// exactly, and nothing can end that: "1e-2000000000" in any object or expression would take hours and gigabytes.
const maxExponent = 10_000

// suffixes is the library's parser of the suffixes of quantities: an interface whose methods are not exported. All
// quantities pass through it, those in JSON, protobuf, CEL and answers of other servers.
//
// At the next minor version: look at k8s.io/apimachinery/pkg/api/resource/suffix.go, the names and signatures of the
// methods of the interface suffixer. If the library limits exponents, delete this file.
//
//go:linkname suffixes k8s.io/apimachinery/pkg/api/resource.quantitySuffixer
var suffixes struct {
	methods *methods
	parser  unsafe.Pointer
}

// methods are the method table of the interface, as the compiler lays it out on machines with 64 bits: two types, the
// hash of one, and the methods in the order of their names: construct, constructBytes, interpret.
type methods [6]uintptr

// interpretMethod is the place of the method interpret.
const interpretMethod = 5

// interpreter is the type of the method interpret.
type interpreter func(parser unsafe.Pointer, suffix string) (base, exponent int32, format string, ok bool)

// quantities has the methods that replace those of the library, and the replaced one.
var quantities struct {
	methods   methods
	interpret interpreter
}

// boundQuantities makes the library refuse quantities with huge exponents. It is called once.
func boundQuantities() {
	quantities.methods = *suffixes.methods
	code := &quantities.methods[interpretMethod]
	library := &struct{ code uintptr }{*code} // a function value points to the address of its code
	quantities.interpret = *(*interpreter)(unsafe.Pointer(&library))
	bounded := interpreter(interpretBounded)
	*code = **(**uintptr)(unsafe.Pointer(&bounded))
	suffixes.methods = &quantities.methods
}

// interpretBounded takes the place of the library's method.
func interpretBounded(parser unsafe.Pointer, suffix string) (base, exponent int32, format string, ok bool) {
	if len(suffix) > 1 && (suffix[0] == 'e' || suffix[0] == 'E') {
		if n, err := strconv.ParseInt(suffix[1:], 10, 64); err == nil && (n > maxExponent || n < -maxExponent) {
			return 0, 0, "", false
		}
	}
	return quantities.interpret(parser, suffix)
}
