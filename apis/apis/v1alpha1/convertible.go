package v1alpha1

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/apis/apis/v1alpha2"
)

// Convertible returns an error if [APIExport.ToV1alpha2] would lose a part of e, as a client
// wrote it: an annotation is malformed or contradicts the spec, or the spec names a resource
// twice.
func (e *APIExport) Convertible() error {
	schemas, claims := resources(), exportClaims()
	return errors.Join(schemas.check(e.ObjectMeta), claims.check(e.ObjectMeta),
		e.exportsOnce(), claims.checkKeys(e.Spec.PermissionClaims, e.ObjectMeta))
}

// exportsOnce returns an error if a schema is malformed, or if the spec and the annotation
// together have two schemas of one resource.
func (e *APIExport) exportsOnce() error {
	l := resources()
	var all []v1alpha2.ResourceSchema
	for _, name := range e.Spec.LatestResourceSchemas {
		if _, err := ParseSchemaName(name); err != nil {
			return fmt.Errorf("spec.latestResourceSchemas: %w", err)
		}
		all = append(all, l.new(name))
	}
	for _, p := range l.parked(e.ObjectMeta) {
		if p != nil {
			all = append(all, *p)
		}
	}
	schemas := map[key]string{}
	for _, r := range all {
		if other, ok := schemas[l.key(r)]; ok {
			return fmt.Errorf("%s has the schemas %q and %q; remove one from spec.latestResourceSchemas or the annotation %s",
				l.key(r), other, r.Schema, l.annotation)
		}
		schemas[l.key(r)] = r.Schema
	}
	return nil
}

// Convertible returns an error if [APIBinding.ToV1alpha2] would lose a part of b, as a client
// wrote it: an annotation is malformed or contradicts the spec, or the spec answers a claim
// twice.
func (b *APIBinding) Convertible() error {
	claims := acceptableClaims()
	return errors.Join(claims.check(b.ObjectMeta), statusExportClaims().check(b.ObjectMeta), statusAppliedClaims().check(b.ObjectMeta),
		claims.checkKeys(b.Spec.PermissionClaims, b.ObjectMeta))
}

// check returns an error if an annotation is malformed.
func (l list[Old, New]) check(m metav1.ObjectMeta) error {
	_, err := read[*New](m, l.annotation)
	_, oldErr := read[Old](m, l.oldAnnotation)
	return errors.Join(err, oldErr)
}

// checkKeys returns an error if two entries of spec.permissionClaims have one key, or if the
// annotation has an entry that v1alpha1 can express and that is not there.
func (l list[Old, New]) checkKeys(claims []Old, m metav1.ObjectMeta) error {
	keys := map[key]bool{}
	for _, c := range claims {
		k := l.key(l.new(c))
		if keys[k] {
			return fmt.Errorf("spec.permissionClaims has %s twice; remove one entry", k)
		}
		keys[k] = true
	}
	for _, p := range l.parked(m) {
		if p != nil && l.plain(*p) && !keys[l.key(*p)] {
			return fmt.Errorf("the annotation %s has %s, and spec.permissionClaims has not; add it there, or remove it from the annotation", l.annotation, l.key(*p))
		}
	}
	return nil
}
