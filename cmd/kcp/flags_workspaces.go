package main

import (
	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/user"
)

// homes are the flags about home workspaces.
type homes struct{ on bool }

func (h *homes) flags(f *pflag.FlagSet, groups *[]string) {
	f.BoolVar(&h.on, "enable-home-workspaces", true, "Whether users have home workspaces, which are made when they first ask for them.")
	f.StringSliceVar(groups, "home-workspaces-home-creator-groups", []string{user.AllAuthenticated}, "Groups whose members may have a home workspace made for them.")
}
