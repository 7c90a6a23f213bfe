// Package guides runs the commands of README.md, docs/quickstart.md and docs/guides as a reader does, and checks that
// what the documentation links to exists.
//
// Each page gets a network without other servers, a home directory and a shell of its own. Its blocks of "sh" are
// run in their order; a block without a language shows lines of the output of the block before it. A comment
// before a block, which a reader does not see, says what else happens:
//
//	<!-- test: terminal -->         a terminal of its own: the command runs until the page ends
//	<!-- test: stop -->             the reader stops the program in the terminal that was opened last
//	<!-- test: exit 3 -->           the last command of the block ends with this code
//	<!-- test: file NAME -->        the block, of any language, is the file NAME
//	<!-- test: skip REASON -->      the block is not run; REASON is one of those that the test knows
//	<!-- test: skip section REASON -->  the same for all blocks up to the next heading
//	<!-- test: run COMMANDS -->     what the page presupposes; the commands are on lines of their own
//	<!-- test: run terminal COMMANDS -->  the same, as a program that runs until the page ends
package guides
