package cli

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// anonymous is who the server takes those for who do not say who they are.
const anonymous = "system:anonymous"

// withAdvice makes cmd and all below it add advice to what they fail with.
func withAdvice(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if todo := advice(err); todo != "" {
				return fmt.Errorf("%w\n%s", err, todo)
			}
			return err
		}
	}
	for _, below := range cmd.Commands() {
		withAdvice(below)
	}
}

// advice returns what to do about an error that says only what went wrong: the
// server cannot be reached, or does not know who asks. It is empty where the error
// has said it, or where there is nothing to do but to read it.
func advice(err error) string {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var operation *net.OpError
	var lookup *net.DNSError
	switch {
	case err == nil:
	case apierrors.IsUnauthorized(err):
		return "your credentials are missing, wrong or have ended: log in again, or see what is sent with kubectl config view --minify"
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), `"`+anonymous+`"`):
		return "you are not logged in: the context in use has no credentials; see kubectl config view --minify"
	case errors.As(err, &unknown):
		return "the certificate of the server is not from the authority in the kubeconfig; if the server was set up anew, get its kubeconfig again"
	case errors.As(err, &host):
		return "the server is not meant to be reached under this name; see the server of the context with kubectl config view --minify"
	case errors.As(err, &lookup), errors.As(err, &operation) && operation.Op == "dial":
		return "no server can be reached there: is it running, and is the context the right one? See kubectl config view --minify"
	}
	return ""
}
