package cluster

import (
	"crypto/sha256"
	"fmt"
	"math/big"
	"strings"
)

// homes is the first word of the paths of home workspaces. The next word is a user name.
const homes = "user"

// homeSeed is the number of bytes of the user name's hash that make the home's name.
const homeSeed = 8

// Home returns the name of the home workspace of a user: the base36 form of the first
// 8 bytes of the SHA-224 of the user name, with a "0" for each leading zero byte.
// The result is a valid [Name] for every user name.
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

// HomePath returns the canonical path of a user's home workspace: user:<name>, or
// [Home] if the user name is not a valid word of a path.
func HomePath(user string) Path {
	if wordRE.MatchString(user) {
		return Path(homes).Join(user)
	}
	return Path(Home(user))
}

// parseHome parses a path that begins with "user:" and a user name. The user name may
// hold any characters except a colon; [HomePath] replaces one that is not a valid word.
func parseHome(s string) (Path, error) {
	user, rest, nested := strings.Cut(strings.TrimPrefix(s, homes+":"), ":")
	if user == "" {
		return "", fmt.Errorf("logical cluster path %q has no user name; write user:<name>", s)
	}
	at := HomePath(user)
	if !nested {
		return at, nil
	}
	return at.joined(s, rest)
}

// InHome reports whether p begins with "user:", so it is a home workspace or below one.
func (p Path) InHome() bool {
	_, _, ok := p.inHome()
	return ok
}

// inHome returns the home that p begins with and the names of the workspaces below it.
// It returns false if p does not begin with "user:".
func (p Path) inHome() (home Name, words []string, ok bool) {
	rest, ok := strings.CutPrefix(string(p), homes+":")
	if !ok {
		return "", nil, false
	}
	words = strings.Split(rest, ":")
	return Home(words[0]), words[1:], true
}
