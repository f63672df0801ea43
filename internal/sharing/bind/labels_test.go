package bind

import (
	"strings"
	"testing"
)

// The server keeps few labels of a binding: consumers choose them.
func TestLabelsAreBounded(t *testing.T) {
	if got := kept(map[string]string{"ring": "canary"}); got["ring"] != "canary" {
		t.Errorf("got %v, want the label", got)
	}
	if got := kept(map[string]string{"a": strings.Repeat("x", mostLabels)}); got != nil {
		t.Errorf("got %d labels, want none", len(got))
	}
}
