// Package texts holds the messages of libraries that other packages compare with, because the
// libraries have no error value or log level for the case. It imports only the standard
// library, so that any package can use it.
package texts

import (
	"slices"
	"strings"
)

// ClientLeft reports whether a line of the log says that the client of a request has left, or
// that its request took too long. The libraries log both as errors, for each such request.
//
// At the next minor version: look at k8s.io/apiserver/pkg/server/filters/timeout.go and wrap.go.
func ClientLeft(message string) bool {
	return slices.Contains([]string{"Post-timeout activity", "Timeout or abort while handling"}, message)
}

// SocketEnded reports whether a line of the log says that a WebSocket cannot be read any more. The library logs
// that as an error for each stream that the server ends, as when a command in a pod has ended.
//
// At the next minor version: look at handle in k8s.io/streaming/pkg/httpstream/wsstream/conn.go.
func SocketEnded(message string) bool { return message == "Error on socket receive" }

// LatePanic reports whether an entry of the log has a panic of a write after the timeout of its
// request. The library logs all ends of such writes at one line of its source.
//
// At the next minor version: look at k8s.io/apiserver/pkg/endpoints/handlers/finisher.
func LatePanic(entry string) bool {
	_, after, found := strings.Cut(entry, "FinishRequest: post-timeout activity - time-elapsed: ")
	_, panicked, _ := strings.Cut(after, ", panicked: ")
	return found && strings.HasPrefix(panicked, "true,")
}

// UnmanagedFields reports whether an entry of the log says that the owners of the fields of an object could not be
// computed. The library logs that as an error that should not happen, but it does for each invalid custom resource,
// before the object is validated and refused.
//
// At the next minor version: look at UpdateNoErrors in
// k8s.io/apimachinery/pkg/util/managedfields/internal/fieldmanager.go.
func UnmanagedFields(entry string) bool {
	return strings.Contains(entry, `"[SHOULD NOT HAPPEN] failed to update managedFields"`)
}

// TLSFailed reports whether a connection of gRPC failed because of its certificates. The error
// of gRPC holds only the text of the cause.
//
// At the next minor version: look at the errors of crypto/tls and crypto/x509, if the release
// of Go changes too.
func TLSFailed(err error) bool { return contains(err, "x509:", "tls:") }

// HungUp reports whether the other end closed a connection of gRPC. A server that refuses the
// certificate of a client sends the reason, but a client that is still writing does not see it.
func HungUp(err error) bool { return contains(err, "broken pipe", "connection reset", "EOF") }

// Says reports whether the text of an error has the text of another one. gRPC loses the type of
// errors when it joins those of several endpoints.
func Says(err, known error) bool { return contains(err, known.Error()) }

func contains(err error, texts ...string) bool {
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(err.Error(), text) })
}
