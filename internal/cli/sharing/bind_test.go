package sharing

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cli/paths"
)

func TestParseReference(t *testing.T) {
	for text, want := range map[string]string{
		"widgets":                 " widgets",
		"root:widgets":            "root widgets",
		"root:org:widgets":        "root:org widgets",
		":root:org:widgets":       "root:org widgets",
		"..:other:widgets":        "root:other widgets",
		".:widgets":               "root:team widgets",
		"34j0c6hrw7ec5otf:widget": "34j0c6hrw7ec5otf widget",
		"":                        "-", ":": "-", "root:": "-", ":widgets": "-", "root::widgets": "-", "Root:widgets": "-",
	} {
		path, name, ok := paths.ParseReference("root:team", text)
		got := string(path) + " " + name
		if !ok {
			got = "-"
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestLacks checks that conditions with one reason are told once, with what to do, and that
// conditions that are True are not told.
func TestLacks(t *testing.T) {
	b := &apis.APIBinding{ObjectMeta: metav1.ObjectMeta{Name: "tools"}, Spec: apis.APIBindingSpec{Reference: apis.BindingReference{Export: &apis.ExportReference{Name: "widgets"}}}}
	set := func(t conditions.Type, reason, message string) {
		status := metav1.ConditionFalse
		if reason == "" {
			status = metav1.ConditionTrue
		}
		b.Status.Conditions.Set(conditions.Condition{Type: t, Status: status, Reason: reason, Message: message})
	}
	set(apis.APIExportValid, "", "")
	set(apis.BindingUpToDate, apis.NamingConflicts, "a is taken")
	set(apis.InitialBindingCompleted, apis.NamingConflicts, "a is taken")
	set(conditions.Ready, apis.NamingConflicts, "a is taken")
	set(apis.PermissionClaimsValid, "Odd", "it is odd")
	want := []string{
		"Not True: BindingUpToDate, InitialBindingCompleted: NamingConflicts: a is taken\n" +
			"What to do: delete the APIBinding or CustomResourceDefinition that has the name, or this APIBinding: kubectl delete apibinding tools",
		"Not True: PermissionClaimsValid: Odd: it is odd",
	}
	if diff := cmp.Diff(want, lacks(b)); diff != "" {
		t.Error(diff)
	}
	for _, reason := range []string{apis.APIExportNotFound, apis.MissingIdentityHash, apis.APIResourceSchemaInvalid, apis.SomeFinalizersRemain} {
		if todo := remedy(b, reason); !strings.HasPrefix(todo, "\nWhat to do: ") {
			t.Errorf("%s: %q does not say what to do", reason, todo)
		}
	}
}

// TestContradictoryAnswers finds claims that flags accept and reject, in either spelling of the core group.
func TestContradictoryAnswers(t *testing.T) {
	for _, c := range []struct {
		accept, reject string
		fails          bool
	}{{"secrets.core", "secrets.core", true}, {"Secrets", "secrets.core", true}, {"secrets.core", "configmaps.core", false}, {"widgets.example.com", "widgets", false}} {
		if err := (ClaimAnswers{accept: []string{c.accept}, reject: []string{c.reject}}).Check(); (err != nil) != c.fails {
			t.Errorf("accept %s, reject %s: %v", c.accept, c.reject, err)
		}
	}
}
