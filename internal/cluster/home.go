package cluster

import (
	"crypto/sha256"
	"fmt"
	"math/big"
	"strings"
)

// homes begins the paths of home workspaces: the word after it is the name of a user.
const homes = "user"

// homeSeed is how many bytes of the hash of a user's name make the name of the home.
const homeSeed = 8

// Home returns the name of the home workspace of a user: the base36 form of the first
// bytes of the SHA-224 of the user's name, with a zero for each byte that is zero at
// the beginning. It is a name whatever the user is called.
func Home(user string) Name {
	sum := sha256.Sum224([]byte(user))
	seed := sum[:homeSeed]
	var zeros int
	for zeros < len(seed) && seed[zeros] == 0 {
		zeros++
	}
	text := strings.Repeat("0", zeros)
	if zeros < len(seed) {
		text += new(big.Int).SetBytes(seed).Text(36)
	}
	return Name(text)
}

// HomePath returns the canonical path of the home workspace of a user: user:<name>, or
// the name of the home if that of the user is not one that workspaces can have.
func HomePath(user string) Path {
	if wordRE.MatchString(user) {
		return Path(homes).Join(user)
	}
	return Path(Home(user))
}

// parseHome parses a path that begins with "user:" and the name of a user, which may be
// anything without a colon. Such a name that is no word is replaced by that of the home.
func parseHome(s string) (Path, error) {
	user, rest, nested := strings.Cut(strings.TrimPrefix(s, homes+":"), ":")
	if user == "" {
		return "", fmt.Errorf("logical cluster path %q does not say whose home it is in; write user:<name>", s)
	}
	at := HomePath(user)
	if !nested {
		return at, nil
	}
	return at.joined(s, rest)
}

// InHome reports whether p leads to a home, or from one, by the name of its user.
func (p Path) InHome() bool {
	_, _, ok := p.inHome()
	return ok
}

// inHome returns the home that a path begins in and the names of the workspaces that
// lead on from there, if it begins in one.
func (p Path) inHome() (home Name, words []string, ok bool) {
	rest, ok := strings.CutPrefix(string(p), homes+":")
	if !ok {
		return "", nil, false
	}
	words = strings.Split(rest, ":")
	return Home(words[0]), words[1:], true
}
