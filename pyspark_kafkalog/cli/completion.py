"""`kafkalog completion`: what lets a shell complete words and arguments."""

import click
from click.shell_completion import get_completion_class


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script that lets a shell complete words, and names of topics and groups.

    \b
    bash: echo 'eval "$(kafkalog completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(kafkalog completion zsh)"' >> ~/.zshrc
    fish: kafkalog completion fish > ~/.config/fish/completions/kafkalog.fish
    """
    of_shell = get_completion_class(shell)
    assert of_shell is not None
    root = ctx.find_root()
    click.echo(of_shell(root.command, {}, "kafkalog", "_KAFKALOG_COMPLETE").source())
