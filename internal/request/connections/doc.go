// Package connections limits the connections of clients: how many are open at a time, and how much
// the server reads from one whose client abandons requests or sends bytes that belong to none.
//
// It knows nothing about users or clusters: a connection is limited before its requests are.
package connections
