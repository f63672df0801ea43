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
