package workspaces

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

const (
	// managedBy is the usual label for the creator of an object. It marks the bindings
	// that share created and unshare may delete.
	managedBy = "app.kubernetes.io/managed-by"
	sharing   = "kubectl-ws-share"

	// accessRole is the role that allows a user to enter a workspace.
	accessRole = "system:kcp:workspace:access"

	// readerRole is the role that allows a user to read Workspaces. The roles of Kubernetes do not have them.
	readerRole = "system:kcp:tenancy:reader"
)

// everywhere returns the roles for users that every workspace has, without an object.
func everywhere() []string { return []string{"view", "edit", "admin", "cluster-admin"} }

// A share is a role that a user or a group gets or loses.
type share struct {
	role        string
	subject     rbacv1.Subject
	descendants bool
}

func shareCommand(a *command.App) *cobra.Command {
	var sh share
	var group bool
	cmd := &cobra.Command{
		Use:   "share USER --role ROLE",
		Short: "Give a user or a group access to the current workspace",
		Long: `Give a user or a group access to the current workspace, with a role: view, edit, admin or cluster-admin, or a ClusterRole of the workspace.

The command creates two ClusterRoleBindings whose names begin with "share:", one to enter the workspace and one for the role. A second call with the same arguments changes nothing. Without --descendants, the user gets no access to the workspaces below. With it, a third binding lets the user list these.`,
		Example: `  # Allow alice to read in the current workspace
  kubectl ws share alice --role view

  # Allow a group to edit in another workspace
  kubectl ws share developers --group --role edit -w :root:org:team

  # Make bob an administrator here and in all workspaces below, now and later
  kubectl ws share bob --role admin --descendants`,
		Args: cobra.ExactArgs(1),
	}
	sh.flags(cmd, &group, "Role to give: "+strings.Join(everywhere(), ", ")+" or a ClusterRole of the workspace.")
	cmd.Flags().BoolVar(&sh.descendants, "descendants", false, "Give the role in all workspaces below, too, now and later.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if sh.role == "" {
			return fmt.Errorf("the role is missing; add --role %s, or a ClusterRole of the workspace", strings.Join(everywhere(), "|"))
		}
		sh.subject = subjectOf(args[0], group)
		return shareWorkspace(cmd.Context(), a, sh)
	}
	return cmd
}

func unshareCommand(a *command.App) *cobra.Command {
	var sh share
	var group bool
	cmd := &cobra.Command{
		Use:   "unshare USER",
		Short: "Revoke the access that share gave",
		Long:  `Revoke the access that "kubectl ws share" gave to a user or a group in the current workspace: one role, or all of them. Other bindings of the user do not change; the command prints them.`,
		Example: `  # Revoke all roles that alice got by share in the current workspace
  kubectl ws unshare alice

  # Revoke one role of a group
  kubectl ws unshare developers --group --role edit`,
		Args: cobra.ExactArgs(1),
	}
	sh.flags(cmd, &group, "Role to revoke. (default all roles)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		sh.subject = subjectOf(args[0], group)
		return unshareWorkspace(cmd.Context(), a, sh)
	}
	return cmd
}

func (sh *share) flags(cmd *cobra.Command, group *bool, role string) {
	cmd.Flags().StringVar(&sh.role, "role", "", role)
	cmd.Flags().BoolVar(group, "group", false, "The argument is the name of a group.")
	output.CompleteFlag(cmd, "role", cobra.FixedCompletions(everywhere(), cobra.ShellCompDirectiveNoFileComp))
	cmd.ValidArgsFunction = cobra.NoFileCompletions
}

func subjectOf(name string, group bool) rbacv1.Subject {
	kind := rbacv1.UserKind
	if group {
		kind = rbacv1.GroupKind
	}
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

// called returns the subject for messages.
func called(s rbacv1.Subject) string { return strings.ToLower(s.Kind) + " " + s.Name }

func rbacIn(s *remote.Server, path cluster.Path) (rbacclient.RbacV1Interface, error) {
	return rbacclient.NewForConfigAndClient(s.In(path), s.Client)
}

// openBindings is open with a client for the bindings of the workspace.
func openBindings(ctx context.Context, a *command.App) (*remote.Server, rbacclient.RbacV1Interface, error) {
	_, srv, err := a.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	rbac, err := rbacIn(srv, srv.Base.Path)
	return srv, rbac, err
}

func shareWorkspace(ctx context.Context, a *command.App, sh share) error {
	srv, rbac, err := openBindings(ctx, a)
	if err != nil {
		return err
	}
	at := srv.Base.Path
	fail := func(err error) error {
		return remote.About(at, "cannot share workspace %q with %s: %w", at, called(sh.subject), err)
	}
	if err := checkRole(ctx, rbac, sh.role); err != nil {
		return fail(err)
	}
	var did []string
	for _, b := range sh.bindings() {
		done, err := bind(ctx, rbac.ClusterRoleBindings(), b)
		if err != nil {
			return fail(err)
		}
		if done {
			did = append(did, b.Name)
		}
	}
	scope := ""
	if sh.descendants {
		scope = " and in all workspaces below"
	}
	if len(did) == 0 {
		a.Print.Say("%s has role %s in '%s'%s already.", output.Sentence(called(sh.subject)), sh.role, at, scope)
	} else {
		a.Print.Say("%s has role %s in '%s'%s now, by ClusterRoleBinding %s.", output.Sentence(called(sh.subject)), sh.role, at, scope, strings.Join(did, " and "))
	}
	a.Print.Note("To enter it, run: kubectl ws :%s", at)
	a.Print.Note("Its URL is %s", srv.Base.URL())
	return nil
}

// checkRole returns an error if the role is known not to exist.
func checkRole(ctx context.Context, rbac rbacclient.RbacV1Interface, role string) error {
	if slices.Contains(everywhere(), role) || role == accessRole {
		return nil
	}
	_, err := rbac.ClusterRoles().Get(ctx, role, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no ClusterRole %q; create it, or use one of %s", role, strings.Join(everywhere(), ", "))
	}
	if apierrors.IsForbidden(err) { // the user may still be allowed to bind the role
		return nil
	}
	return err
}

// bindings returns the bindings for sh: to the access role, to its own role, and for a subtree to the role that finds
// the workspaces in it.
func (sh share) bindings() []*rbacv1.ClusterRoleBinding {
	var all []*rbacv1.ClusterRoleBinding
	roles := []string{accessRole, sh.role}
	if sh.descendants && sh.role != "cluster-admin" {
		roles = append(roles, readerRole)
	}
	for _, role := range slices.Compact(roles) {
		b := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: sh.name(role), Labels: map[string]string{managedBy: sharing}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{sh.subject},
		}
		if sh.descendants {
			b.Labels[core.DescendantsLabel] = "true"
		}
		all = append(all, b)
	}
	return all
}

// plain are the characters that the name of a binding may have.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:@.-_+ "

// longest is the maximum length of the name of an object.
const longest = 253

// name returns the name of the binding to role. No two shares have one in common.
func (sh share) name(role string) string {
	subject := ":" + strings.ToLower(sh.subject.Kind) + ":" + sh.subject.Name
	name := "share:" + role + subject
	clear := !strings.Contains(role, ":") && role != "access" && role != "workspaces"
	switch role {
	case accessRole:
		name, clear = "share:access"+subject, true
	case readerRole:
		name, clear = "share:workspaces"+subject, true
	}
	if clear && strings.Trim(name, plain) == "" && len(name) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(name + "\x00" + role))
	return "share:" + hex.EncodeToString(sum[:16])
}

// bind creates the binding, or updates the binding of that name. It reports whether it
// changed anything.
func bind(ctx context.Context, bindings rbacclient.ClusterRoleBindingInterface, want *rbacv1.ClusterRoleBinding) (bool, error) {
	_, err := bindings.Create(ctx, want, metav1.CreateOptions{FieldManager: remote.UserAgent})
	if !apierrors.IsAlreadyExists(err) {
		return err == nil, err
	}
	old, err := bindings.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	if old.RoleRef != want.RoleRef || old.Labels[managedBy] != want.Labels[managedBy] {
		return false, fmt.Errorf("a ClusterRoleBinding %q with another content exists; delete it first", want.Name)
	}
	now := old.DeepCopy()
	now.Subjects = want.Subjects
	if want.Labels[core.DescendantsLabel] != "" {
		now.Labels[core.DescendantsLabel] = want.Labels[core.DescendantsLabel]
	}
	if slices.Equal(now.Subjects, old.Subjects) && now.Labels[core.DescendantsLabel] == old.Labels[core.DescendantsLabel] {
		return false, nil
	}
	_, err = bindings.Update(ctx, now, metav1.UpdateOptions{FieldManager: remote.UserAgent})
	return err == nil, err
}

func unshareWorkspace(ctx context.Context, a *command.App, sh share) error {
	srv, rbac, err := openBindings(ctx, a)
	if err != nil {
		return err
	}
	at := srv.Base.Path
	fail := func(err error) error {
		return remote.About(at, "cannot revoke the access of %[2]s to workspace %[1]q: %[3]w", at, called(sh.subject), err)
	}
	all, err := rbac.ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fail(err)
	}
	drop, others := sh.split(all.Items)
	for _, b := range drop {
		gone := rbac.ClusterRoleBindings().Delete(ctx, b.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &b.UID}})
		if gone != nil && !apierrors.IsNotFound(gone) {
			return fail(gone)
		}
		a.Print.Say("Deleted ClusterRoleBinding %s.", b.Name)
	}
	if len(drop) == 0 {
		a.Print.Note("%s has no role by share in '%s'%s.", output.Sentence(called(sh.subject)), at, as(sh.role))
	}
	inherited, err := srv.InheritedBindings(ctx, at)
	if err != nil { // the user may not read them, or the server has no such request
		inherited = nil
	}
	for _, b := range sh.among(inherited) {
		a.Print.Note("note: %s still has role %s here, by ClusterRoleBinding %s in workspace %s", called(sh.subject), b.RoleRef.Name, b.Name, remote.PathOf(b.Annotations))
	}
	for _, b := range others {
		a.Print.Note("note: %s still has role %s, by ClusterRoleBinding %s", called(sh.subject), b.RoleRef.Name, b.Name)
	}
	return nil
}

func as(role string) string {
	if role == "" {
		return ""
	}
	return " as " + role
}

// among returns the bindings of the subject.
func (sh share) among(all []rbacv1.ClusterRoleBinding) (its []*rbacv1.ClusterRoleBinding) {
	for i := range all {
		if slices.ContainsFunc(all[i].Subjects, func(s rbacv1.Subject) bool { return s.Kind == sh.subject.Kind && s.Name == sh.subject.Name }) {
			its = append(its, &all[i])
		}
	}
	return its
}

// split returns the bindings that unshare deletes, and the other bindings of the subject.
// The bindings to the access role and to the reader role are deleted with the last role.
func (sh share) split(all []rbacv1.ClusterRoleBinding) (drop, others []*rbacv1.ClusterRoleBinding) {
	shared := labels.SelectorFromSet(labels.Set{managedBy: sharing})
	var access []*rbacv1.ClusterRoleBinding
	kept := false
	for _, b := range sh.among(all) {
		switch {
		case !shared.Matches(labels.Set(b.Labels)) || len(b.Subjects) > 1:
			others = append(others, b)
		case b.RoleRef.Name == accessRole, b.RoleRef.Name == readerRole:
			access = append(access, b)
		case sh.role == "" || b.RoleRef.Name == sh.role:
			drop = append(drop, b)
		default:
			kept = true
			others = append(others, b)
		}
	}
	if !kept && (sh.role == "" || sh.role == accessRole || sh.role == readerRole || len(drop) > 0) {
		drop = append(drop, access...)
	}
	return drop, others
}
