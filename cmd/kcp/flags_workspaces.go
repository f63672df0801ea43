package main

import (
	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp"
)

// mounts adds the flags about mounted workspaces.
func mounts(f *pflag.FlagSet, m *kcp.MountProxy) {
	f.StringVar(&m.CertFile, "mount-proxy-client-cert-file", "", "PEM file with the certificate that is shown to the servers of mounted workspaces, so that they believe who asks. It is read again when it changes.")
	f.StringVar(&m.KeyFile, "mount-proxy-client-key-file", "", "PEM file with the key of --mount-proxy-client-cert-file.")
}

// homes are the flags about home workspaces.
type homes struct{ on bool }

func (h *homes) flags(f *pflag.FlagSet, groups *[]string) {
	f.BoolVar(&h.on, "enable-home-workspaces", true, "Whether users have home workspaces, which are made when they first ask for them.")
	f.StringSliceVar(groups, "home-workspaces-home-creator-groups", []string{user.AllAuthenticated}, "Groups whose members may have a home workspace made for them.")
}
