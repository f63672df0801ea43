package v1alpha2

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestExportLabelValue(t *testing.T) {
	// echo -n root:widgets | sha224sum, in base 62
	got := ExportLabelValue("root", "widgets")
	if want := "1oNwKzCPVdx8ged3ajqEGHgS4wYwVD4iICmHKO"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	long := ExportLabelValue("root", strings.Repeat("x", 253))
	if errs := append(validation.IsValidLabelValue(long), validation.IsQualifiedName(ClaimedLabelPrefix+long)...); len(errs) > 0 {
		t.Errorf("%s cannot be in a label: %q", long, errs)
	}
}

func TestClaimLabelValue(t *testing.T) {
	// echo -n '{"resource":"secrets","verbs":null}' | sha224sum, in base 62
	got := ClaimLabelValue("", "secrets", "")
	if want := "ctwrJRvMX7cX8wwk40Lz00UjJhYxPWE3TpN1lu"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// The order of fields and the ones that are left out are those of the existing kcp.
	got = ClaimLabelValue("example.com", "widgets", "1f0e")
	if want := "aAtQGVWmqtMEmKRBNuAnm779AhoKeX5zkxRlG4"; got != want {
		t.Errorf("of another export: got %s, want %s", got, want)
	}
	of := map[string]bool{got: true}
	for _, other := range []string{ClaimLabelValue("", "configmaps", ""), ClaimLabelValue("example.com", "secrets", ""), ClaimLabelValue("", "secrets", "1f0e")} {
		if errs := validation.IsValidLabelValue(other); len(errs) > 0 || of[other] {
			t.Errorf("%s is the value of another claim, or none for a label: %q", other, errs)
		}
		of[other] = true
	}
}

func TestReferencesInMessages(t *testing.T) {
	for want, r := range map[string]ExportReference{"widgets": {Name: "widgets"}, "root:tools:widgets": {Path: "root:tools", Name: "widgets"}} {
		if got := r.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
