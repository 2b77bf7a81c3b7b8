from pipewright.command_line import main

main()
