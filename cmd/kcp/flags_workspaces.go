package main

import (
	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp"
)

// mounts adds the flags for mounted workspaces.
func mounts(f *pflag.FlagSet, m *kcp.MountProxy) {
	f.StringVar(&m.CertFile, "mount-proxy-client-cert-file", "", "PEM file with the client certificate for servers of mounted workspaces, which must trust it to accept the forwarded user. The server reloads it when it changes.")
	f.StringVar(&m.KeyFile, "mount-proxy-client-key-file", "", "PEM file with the private key of --mount-proxy-client-cert-file.")
}

// homes holds the flags for home workspaces.
type homes struct{ on bool }

func (h *homes) flags(f *pflag.FlagSet, groups *[]string) {
	f.BoolVar(&h.on, "enable-home-workspaces", true, "Give users home workspaces. The server creates one when the user first asks for it.")
	f.StringSliceVar(groups, "home-workspaces-home-creator-groups", []string{user.AllAuthenticated}, "Groups whose members may have a home workspace.")
}
