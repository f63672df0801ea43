package serve

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/unforked/kcp/internal/memory/recent"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/sharing/conversion"
)

const (
	// maxConverted and convertedIdle limit the cache of single objects that rules have
	// converted, and cachedBytes limits each of them. The watches of a resource get each
	// object from it, so that the cost of expressions does not grow with their number.
	maxConverted  = 256
	convertedIdle = 10 * time.Second
	cachedBytes   = 64 << 10
)

// A ruled converts the objects of one handler.
type ruled struct {
	conversion *conversion.Conversion
	err        error // why the rules cannot be used
	served     []schema.GroupVersion
	timeout    time.Duration // of one call, which converts an object or a list
	cache      *recent.Cache[convertedKey, []byte]
	hash       catalog.Hash // of the rules and the schema
}

type convertedKey struct{ rules, object catalog.Hash }

// newRuled compiles rules for a definition. A schema may have replaced the one that the rules
// were written for, so it may fail: conversions then fail, and the storage version is served.
func (p *Pool) newRuled(crd *apiextensionsv1.CustomResourceDefinition, r *catalog.Rules) *ruled {
	hash := r.Hash()
	out := &ruled{timeout: p.config.ConversionTimeout, cache: p.converted, hash: sha256.Sum256(slices.Concat([]byte(crd.UID), hash[:]))}
	for _, v := range crd.Spec.Versions {
		if v.Served {
			out.served = append(out.served, schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name})
		}
	}
	spec, err := r.Spec()
	if err != nil {
		out.err = err
		return out
	}
	compiled, errs := conversion.Compile(crd, spec)
	if len(errs) > 0 {
		out.err = fmt.Errorf("the APIConversion does not match its APIResourceSchema: %w", errs.ToAggregate())
	}
	out.conversion = compiled
	return out
}

// begin returns a [catalog.Convert] function for the objects of one call.
func (r *ruled) begin() (catalog.Convert, func()) {
	ctx, stop := context.WithTimeout(context.Background(), r.timeout)
	return func(o *unstructured.Unstructured, to string) (*unstructured.Unstructured, error) {
		if r.err != nil {
			return nil, r.err
		}
		return r.conversion.Convert(ctx, o, to)
	}, stop
}

// once returns the result of convert for the JSON of a single object, possibly an earlier one.
func (r *ruled) once(text []byte, to string, convert func() ([]byte, error)) ([]byte, error) {
	if len(text) > cachedBytes {
		return convert()
	}
	key := convertedKey{r.hash, sha256.Sum256(slices.Concat([]byte(to+"\n"), text))}
	return r.cache.Get(context.Background(), key, convert)
}

// check refuses objects that cannot be converted to a served version. Otherwise lists and
// watches in that version would fail, for all readers of the object.
func (r *ruled) check(a admission.Attributes) error {
	o, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok || a.GetOperation() != admission.Create && a.GetOperation() != admission.Update {
		return nil
	}
	convert, done := r.begin()
	defer done()
	for _, gv := range r.served {
		if gv.Version == a.GetKind().Version {
			continue
		}
		if _, err := convert(o, gv.String()); err != nil {
			return admission.NewForbidden(a, fmt.Errorf("the object cannot be converted to %s: %w", gv.Version, err))
		}
	}
	return nil
}

// A checked admits objects that can be converted.
type checked struct {
	admission.Interface
	rules *ruled
}

// Admit implements [admission.MutationInterface].
func (c checked) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if m, ok := c.Interface.(admission.MutationInterface); ok {
		return m.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements [admission.ValidationInterface].
func (c checked) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if v, ok := c.Interface.(admission.ValidationInterface); ok {
		if err := v.Validate(ctx, a, o); err != nil {
			return err
		}
	}
	return c.rules.check(a)
}
