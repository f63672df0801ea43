package shown

import (
	"strings"
	"testing"
)

func TestVersions(t *testing.T) {
	v := Versions{}
	v.Add(key, "20")
	v.Add(key, "10")
	v.Add(otherKey, "7")
	v.Add(otherKey, "no number")
	text := v.String()
	if text != "k1k1k1-10.k2k2k2-7" {
		t.Error(text)
	}
	if (Versions{}).String() != nowhere {
		t.Error("an empty version means any")
	}
	for _, ok := range []string{"", "0", "1", text} {
		if _, err := ParseVersions(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"2", "-", "k1-1", "k1k1k1-", "k1k1k1-0", "k1k1k1--1", text + ".", strings.Repeat(text+".", mostVersions) + text} {
		if _, err := ParseVersions(bad); err == nil {
			t.Errorf("%.30q is accepted", bad)
		}
	}
}

func FuzzVersions(f *testing.F) {
	f.Add("k1k1k1-10.k2k2k2-7")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseVersions(text)
		if err != nil {
			return
		}
		if again, err := ParseVersions(v.String()); err != nil || again.String() != v.String() {
			t.Errorf("%q: %v, %v", text, again, err)
		}
	})
}

func TestEventVersions(t *testing.T) {
	for text, want := range map[string]string{"": "", "0": "", "17": "17", "STORED-17": "17", "STORED-17.k1k1k1-5": "17", "k1k1k1-5": ""} {
		v, err := ParseEventVersions(text)
		if err != nil || v.Stored() != want {
			t.Errorf("%q: stored %q, %v", text, v.Stored(), err)
		}
	}
	if _, err := ParseEventVersions("nonsense"); err == nil {
		t.Error("nonsense is accepted")
	}
}
