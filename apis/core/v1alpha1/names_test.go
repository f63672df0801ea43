package v1alpha1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestLabels(t *testing.T) {
	// echo -n root:universal | sha224sum
	const sum = "d1d6459a03641b6fd7560fc2849f6c66fa971a0afeded6ba2d2743f2"
	key, value := Initializer("root:universal").Label()
	if want := "initializer.internal.kcp.io/" + sum[:35]; key != want || value != sum {
		t.Errorf("label of the initializer is %s=%s, want %s=%s", key, value, want, sum)
	}
	key, value = Terminator("root:universal").Label()
	if want := "terminator.internal.kcp.io/" + sum[:36]; key != want || value != sum {
		t.Errorf("label of the terminator is %s=%s, want %s=%s", key, value, want, sum)
	}

	long := strings.Repeat("x", 500) + ":/ *"
	for _, label := range []func() (string, string){Initializer(long).Label, Terminator(long).Label} {
		key, value := label()
		if errs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(errs) > 0 || len(key) != 63 {
			t.Errorf("%s=%s is no label with a key of 63 characters: %q", key, value, errs)
		}
	}
}
