package exports

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
)

// maxExtra is the maximum size, in bytes, of the annotations that an export gives to its bindings. Each consumer
// stores them.
const maxExtra = 4 << 10

// Extra are the annotations that an export gives to its bindings.
type Extra map[string]string

// ExtraOf returns those of annotations that bindings have from their export.
func ExtraOf(annotations map[string]string) Extra {
	var out Extra
	for key, value := range annotations {
		if strings.HasPrefix(key, apisv1alpha2.ExtraAnnotationPrefix) {
			if out == nil {
				out = Extra{}
			}
			out[key] = value
		}
	}
	return out
}

// Check returns an error if the annotations are too large.
func (e Extra) Check() error {
	size := 0
	for key, value := range e {
		size += len(key) + len(value)
	}
	if size > maxExtra {
		return fmt.Errorf("the annotations %s… have %d bytes, and may have %d together: all APIBindings to this APIExport get a copy; remove or shorten some", apisv1alpha2.ExtraAnnotationPrefix, size, maxExtra)
	}
	return nil
}

// Hash identifies the annotations. It is empty if there are none.
func (e Extra) Hash() string {
	if len(e) == 0 {
		return ""
	}
	text, err := json.Marshal(e) // sorts the keys
	if err != nil {
		panic(err) // a bug: strings always encode
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12])
}

// Set replaces these annotations in the annotations of a binding, which it changes.
func (e Extra) Set(annotations map[string]string) map[string]string {
	for key := range ExtraOf(annotations) {
		if _, ok := e[key]; !ok {
			delete(annotations, key)
		}
	}
	for key, value := range e {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[key] = value
	}
	return annotations
}
